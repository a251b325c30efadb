//! Tests of deployment plans over whole rollouts.

use super::plan::{DeploymentPlan, ObservedDeployment, plan};
use super::replica_sets::{DESIRED, MAX, REVISION, ROLL_BACK_TO, replicas, revision};
use crate::shared::fixture::{at, meta, time};
use objects::IntOrString;
use objects::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, ReplicaSet, ReplicaSetStatus, RollingUpdateDeployment,
};
use objects::core::v1::{Container, PodSpec, PodTemplateSpec};
use objects::meta::v1::{LabelSelector, ObjectMeta};

fn template(image: &str) -> PodTemplateSpec {
    let container = Container { name: "c".to_owned(), image: Some(image.to_owned()), ..Container::default() };
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some([("app".to_owned(), "web".to_owned())].into()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
    }
}

fn deployment(count: i32, surge: i32, unavailable: i32) -> Deployment {
    let mut metadata = meta("web");
    metadata.generation = Some(1);
    Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: Some(count),
            selector: LabelSelector {
                match_labels: Some([("app".to_owned(), "web".to_owned())].into()),
                match_expressions: None,
            },
            template: template("v1"),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(surge)),
                    max_unavailable: Some(IntOrString::Int(unavailable)),
                }),
            }),
            progress_deadline_seconds: Some(600),
            revision_history_limit: Some(1),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// Simulation of a deployment and its replica sets, whose pods the test sets.
struct World {
    deployment: Deployment,
    sets: Vec<ReplicaSet>,
    now: i64,
    events: Vec<String>,
}

impl World {
    fn new(deployment: Deployment) -> Self {
        Self { deployment, sets: Vec::new(), now: 1000, events: Vec::new() }
    }

    fn look(&self) -> DeploymentPlan {
        let running = self.sets.iter().filter(|set| set.status.as_ref().is_some_and(|s| s.replicas > 0));
        plan(ObservedDeployment {
            deployment: &self.deployment,
            replica_sets: self.sets.clone(),
            running_pods: running.filter_map(|set| set.metadata.uid.clone()).collect(),
            now: at(self.now),
        })
    }

    /// Runs one reconciliation and applies its writes.
    fn pass(&mut self) {
        let plan = self.look();
        self.events.extend(plan.notes.iter().map(|note| note.text.clone()));
        if let Some(mut new) = plan.create {
            self.now += 1;
            new.metadata.uid = Some(format!("uid-{}", self.sets.len()));
            new.metadata.creation_timestamp = Some(time(self.now));
            self.sets.push(new);
        }
        for changed in plan.update {
            let set = self.sets.iter_mut().find(|set| set.metadata.uid == changed.metadata.uid);
            *set.expect("known") = changed;
        }
        self.sets.retain(|set| !plan.delete.iter().any(|gone| gone.metadata.uid == set.metadata.uid));
        if let Some(changed) = plan.roll_back.or(plan.status) {
            self.deployment = *changed;
        }
    }

    /// Sets every replica set to its desired number of pods, all available.
    fn pods_follow(&mut self) {
        for set in &mut self.sets {
            let count = replicas(set);
            set.status = Some(ReplicaSetStatus {
                replicas: count,
                ready_replicas: Some(count),
                available_replicas: Some(count),
                terminating_replicas: Some(0),
                ..ReplicaSetStatus::default()
            });
        }
    }

    fn sizes(&self) -> Vec<i32> {
        self.sets.iter().map(replicas).collect()
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            self.pass();
            self.pods_follow();
        }
    }

    fn reason(&self, kind: &str) -> Option<String> {
        let conditions = self.deployment.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == kind)?.reason.clone()
    }

    fn change_image(&mut self, image: &str) {
        self.deployment.spec.as_mut().expect("a spec").template = template(image);
        let generation = self.deployment.metadata.generation.unwrap_or(0) + 1;
        self.deployment.metadata.generation = Some(generation);
    }

    fn resize(&mut self, count: i32) {
        self.deployment.spec.as_mut().expect("a spec").replicas = Some(count);
        let generation = self.deployment.metadata.generation.unwrap_or(0) + 1;
        self.deployment.metadata.generation = Some(generation);
    }
}

#[test]
fn new_deployment_creates_replica_set() {
    let mut world = World::new(deployment(3, 1, 1));
    world.pass();
    assert_eq!(world.sizes(), [3]);
    let set = &world.sets[0];
    let labels = set.metadata.labels.as_ref().expect("labels");
    let hash = &labels["pod-template-hash"];
    assert_eq!(set.metadata.name, Some(format!("web-{hash}")));
    assert_eq!(set.spec.as_ref().expect("a spec").selector.match_labels.as_ref(), Some(labels));
    let annotations = set.metadata.annotations.as_ref().expect("annotations");
    assert_eq!((&*annotations[REVISION], &*annotations[DESIRED], &*annotations[MAX]), ("1", "3", "4"));
    assert_eq!(world.events, [format!("Scaled up replica set web-{hash} from 0 to 3")]);
    assert_eq!(world.reason("Progressing").as_deref(), Some("NewReplicaSetCreated"));
    assert_eq!(world.reason("Available").as_deref(), Some("MinimumReplicasUnavailable"));
    world.settle();
    assert_eq!(world.reason("Progressing").as_deref(), Some("NewReplicaSetAvailable"));
    assert_eq!(world.reason("Available").as_deref(), Some("MinimumReplicasAvailable"));
    assert_eq!(world.deployment.metadata.annotations.as_ref().expect("some")[REVISION], "1");
    let quiet = world.look();
    assert!(quiet.status.is_none() && quiet.update.is_empty() && quiet.requeue_after.is_none());
}

#[test]
fn rolling_update_stays_within_bounds() {
    for (count, surge, unavailable) in [(10, 3, 2), (10, 0, 1), (10, 1, 0), (1, 1, 0), (5, 5, 5), (4, 0, 0)] {
        let mut world = World::new(deployment(count, surge, unavailable));
        world.settle();
        world.change_image("v2");
        for _ in 0..60 {
            world.pass();
            let total: i32 = world.sizes().iter().sum();
            assert!(total <= count + surge, "{total} of {count} + {surge}");
            let available: i32 = world
                .sets
                .iter()
                .map(|set| {
                    replicas(set).min(set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0))
                })
                .sum();
            let least = count - unavailable.max(i32::from(surge == 0));
            assert!(available >= least, "{available} of {least}");
            world.pods_follow();
        }
        assert_eq!(world.sizes(), [0, count]);
        assert_eq!(revision(&world.sets[1]), 2);
    }
}

#[test]
fn stuck_update_stops_and_exceeds_deadline() {
    let mut world = World::new(deployment(10, 3, 2));
    world.settle();
    world.change_image("bad");
    let working = |world: &mut World| {
        world.pods_follow();
        for set in world.sets.iter_mut().skip(1) {
            set.status.get_or_insert_default().available_replicas = Some(0);
            set.status.get_or_insert_default().ready_replicas = Some(0);
        }
    };
    for _ in 0..20 {
        world.pass();
        working(&mut world);
    }
    assert_eq!(world.sizes(), [8, 5]);
    let wait = world.look().requeue_after.expect("a look at the deadline");
    assert!(wait.as_secs() <= 601, "{wait:?}");
    world.now += 700;
    world.pass();
    assert_eq!(world.reason("Progressing").as_deref(), Some("ProgressDeadlineExceeded"));
    assert!(world.look().requeue_after.is_none());
    // A third template replaces both.
    world.change_image("v3");
    world.settle();
    assert_eq!(world.sizes().last(), Some(&10));
    assert_eq!(world.reason("Progressing").as_deref(), Some("NewReplicaSetAvailable"));
}

#[test]
fn history_is_limited_and_old_templates_are_reused() {
    let mut world = World::new(deployment(2, 1, 1));
    world.settle();
    for image in ["v2", "v3"] {
        world.change_image(image);
        world.settle();
    }
    assert_eq!(world.sizes(), [0, 2], "one old replica set is kept");
    let first = world.sets[0].metadata.name.clone();
    world.change_image("v2");
    world.settle();
    let back = world.sets.iter().find(|set| set.metadata.name == first).expect("still there");
    assert_eq!((replicas(back), revision(back)), (2, 4));
    let history = back
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get("deployment.kubernetes.io/revision-history"));
    assert_eq!(history.map(String::as_str), Some("2"));
}

#[test]
fn rollback_annotation_restores_template() {
    let mut world = World::new(deployment(2, 1, 1));
    world.settle();
    world.change_image("v2");
    world.settle();
    let annotations = world.deployment.metadata.annotations.get_or_insert_default();
    annotations.insert(ROLL_BACK_TO.to_owned(), "0".to_owned());
    world.pass();
    assert_eq!(world.events.last().map(String::as_str), Some("Rolled back deployment \"web\" to revision 1"));
    assert_eq!(world.deployment.spec.as_ref().expect("a spec").template, template("v1"));
    assert!(!world.deployment.metadata.annotations.as_ref().expect("some").contains_key(ROLL_BACK_TO));
}

#[test]
fn scaling_during_update_is_proportional() {
    let mut world = World::new(deployment(10, 2, 2));
    world.settle();
    world.change_image("v2");
    world.pass();
    world.pods_follow();
    world.pass();
    let before = world.sizes();
    assert!(before.iter().sum::<i32>() > 10);
    world.resize(30);
    world.pass();
    let after = world.sizes();
    assert_eq!(after.iter().sum::<i32>(), 32);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    world.pods_follow();
    world.settle();
    assert_eq!(world.sizes(), [0, 30]);
    world.resize(0);
    world.settle();
    assert_eq!(world.sizes(), [0, 0]);
}

#[test]
fn paused_deployment_scales_but_does_not_roll() {
    let mut world = World::new(deployment(3, 1, 1));
    world.settle();
    world.deployment.spec.as_mut().expect("a spec").paused = Some(true);
    world.change_image("v2");
    world.settle();
    assert_eq!(world.sizes(), [3]);
    assert_eq!(world.reason("Progressing").as_deref(), Some("DeploymentPaused"));
    world.resize(5);
    world.settle();
    assert_eq!(world.sizes(), [5]);
    world.deployment.spec.as_mut().expect("a spec").paused = None;
    world.settle();
    assert_eq!(world.sizes(), [0, 5]);
    assert_eq!(world.reason("Progressing").as_deref(), Some("NewReplicaSetAvailable"));
}

#[test]
fn recreate_waits_for_old_pods_to_terminate() {
    let mut world = World::new(deployment(3, 0, 0));
    let strategy = DeploymentStrategy { type_: Some("Recreate".to_owned()), rolling_update: None };
    world.deployment.spec.as_mut().expect("a spec").strategy = Some(strategy);
    world.settle();
    world.change_image("v2");
    world.pass();
    assert_eq!(world.sizes(), [0]);
    world.pass();
    assert_eq!(world.sizes(), [0], "old pods still run");
    world.settle();
    assert_eq!(world.sizes(), [0, 3]);
}
