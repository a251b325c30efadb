//! Chaos: deployments, stateful sets, daemon sets and jobs on simulated nodes, while all controllers and the
//! scheduler are killed and restarted and pods and nodes are deleted at random. Afterwards the state is exactly as
//! desired: nothing missing, nothing surplus.
//!
//! Controllers and scheduler are ordinary clients over TCP, each loop with its own service account. The short form
//! always runs; `FERRY_CHAOS=long` runs twenty of each on fifty nodes for two minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ListOptions, Object, delete_options};
use cluster::{Components, Fleet, SchedulerConfiguration};
use objects::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use objects::batch::v1::Job;
use objects::core::v1::{Node, Pod};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use testkit::{Server, eventually};
use tokio::task::JoinHandle;

use crate::world::template;

struct Size {
    each: usize,
    nodes: usize,
    chaos: Duration,
    settle: Duration,
    /// True if deleted nodes are recreated before the state settles; else their pods are garbage-collected, which
    /// takes a while.
    nodes_return: bool,
}

fn size() -> Size {
    if std::env::var("FERRY_CHAOS").is_ok_and(|size| size == "long") {
        let (chaos, settle) = (Duration::from_secs(120), Duration::from_secs(300));
        Size { each: 20, nodes: 50, chaos, settle, nodes_return: false }
    } else {
        let (chaos, settle) = (Duration::from_secs(5), Duration::from_secs(120));
        Size { each: 3, nodes: 5, chaos, settle, nodes_return: true }
    }
}

/// Components in their own tasks, which can be killed.
struct Killable {
    components: Components,
    kubeconfig: PathBuf,
    running: Option<(TaskGroup, JoinHandle<()>)>,
}

impl Killable {
    fn start(components: Components, kubeconfig: PathBuf) -> Self {
        let mut killable = Self { components, kubeconfig, running: None };
        killable.restart();
        killable
    }

    fn kill(&mut self) {
        if let Some((tasks, handle)) = self.running.take() {
            tasks.abort();
            handle.abort();
        }
    }

    fn restart(&mut self) {
        self.kill();
        let tasks = TaskGroup::new();
        let (components, kubeconfig, group) =
            (self.components.clone(), self.kubeconfig.clone(), tasks.clone());
        let handle = tokio::spawn(async move {
            let outcome = cluster::run_alone(&components, &kubeconfig, &Clock::system(), &group).await;
            outcome.expect("components that run");
        });
        self.running = Some((tasks, handle));
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
    }
}

struct World {
    server: Server,
    client: Client,
    fleet: Fleet,
    nodes: TaskGroup,
    controllers: Killable,
    scheduler: Killable,
}

impl World {
    async fn start(size: &Size) -> Result<Self> {
        let server = Server::start().await?;
        let client = Client::connect(&server.kubeconfig, "test")?;
        let controllers = Components {
            controllers: vec!["*".to_owned()],
            service_account_credentials: true,
            ..Components::default()
        };
        let scheduler =
            Components { scheduler: Some(SchedulerConfiguration::default()), ..Components::default() };
        let kubeconfig = || server.kubeconfig.clone();
        let (controllers, scheduler) =
            (Killable::start(controllers, kubeconfig()), Killable::start(scheduler, kubeconfig()));
        let fleet = Fleet { nodes: size.nodes, run_time: Duration::from_millis(200), ..Fleet::default() };
        let nodes = TaskGroup::new();
        simulate::start(&client, fleet.clone(), &Clock::system(), &nodes).await?;
        Ok(Self { server, client, fleet, nodes, controllers, scheduler })
    }

    async fn create<K: Object>(&self, object: Value) -> Result<()> {
        let object: K = objects::from_value(&object)?;
        self.client.create("default", &object).await?;
        Ok(())
    }

    async fn list<K: Object>(&self, ns: &str) -> Vec<K> {
        self.client.list::<K>(ns, &ListOptions::default()).await.expect("a list").items
    }

    async fn populate(&self, size: &Size) -> Result<()> {
        for n in 0..size.each {
            let select = |app: &str| json!({ "matchLabels": { "app": app } });
            let app = format!("set{n}");
            let policy = if n % 2 == 0 { "OrderedReady" } else { "Parallel" };
            self.create::<StatefulSet>(json!({ "metadata": { "name": app }, "spec": {
                "replicas": 3, "serviceName": app, "podManagementPolicy": policy,
                "selector": select(&app), "template": template(&app),
            } }))
            .await?;
            let app = format!("daemon{n}");
            self.create::<DaemonSet>(json!({ "metadata": { "name": app }, "spec": {
                "selector": select(&app), "template": template(&app),
            } }))
            .await?;
            let app = format!("job{n}");
            let mut pod = template(&app);
            pod["spec"]["restartPolicy"] = json!("Never");
            let mode = if n % 2 == 0 { "Indexed" } else { "NonIndexed" };
            self.create::<Job>(json!({ "metadata": { "name": app }, "spec": {
                "completions": 4, "parallelism": 2, "backoffLimit": 1000, "completionMode": mode,
                "template": pod,
                // Lost nodes are disruptions: they neither count nor delay.
                "podFailurePolicy": { "rules": [{ "action": "Ignore", "onPodConditions": [
                    { "type": "DisruptionTarget", "status": "True" },
                ] }] },
            } }))
            .await?;
            let app = format!("deploy{n}");
            self.create::<Deployment>(json!({ "metadata": { "name": app }, "spec": {
                "replicas": 3, "selector": select(&app), "template": template(&app),
            } }))
            .await?;
        }
        Ok(())
    }

    /// One random fault, or none.
    async fn trouble(&mut self, random: &mut SmallRng) -> Result<()> {
        match random.random_range(0..12) {
            0 => self.controllers.restart(),
            1 => self.scheduler.restart(),
            2..=6 => {
                let mut pods = self.list::<Pod>("default").await;
                pods.retain(|pod| owner(pod).is_some_and(|(kind, _)| kind != "Job"));
                if !pods.is_empty() {
                    let pod = &pods[random.random_range(0..pods.len())];
                    let options = delete_options(pod.metadata.uid.as_deref(), None);
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    // It may already be deleted.
                    let _ = self.client.delete::<Pod>("default", name, &options).await;
                }
            }
            7 => {
                let nodes = self.list::<Node>("").await;
                if nodes.len() > 2 {
                    let at = random.random_range(0..nodes.len());
                    let name = nodes[at].metadata.name.clone().unwrap_or_default();
                    let _ = self.client.delete::<Node>("", &name, &delete_options(None, None)).await;
                }
            }
            8 => {
                let number = random.random_range(0..self.fleet.nodes);
                simulate::register(&self.client, &self.fleet, number, &Clock::system()).await?;
            }
            _ => tokio::time::sleep(Duration::from_millis(random.random_range(0..100))).await,
        }
        Ok(())
    }

    /// Differences from the desired state.
    async fn differences(&self, size: &Size) -> Vec<String> {
        let mut troubles = Vec::new();
        let nodes: BTreeSet<String> =
            self.list::<Node>("").await.into_iter().filter_map(|node| node.metadata.name).collect();
        let sets = self.list::<ReplicaSet>("default").await;
        let mut apps: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in self.list::<Pod>("default").await {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
            let Some((kind, _)) = owner(&pod) else {
                troubles.push(format!("{name} has no owner"));
                continue;
            };
            let wanted = if kind == "Job" { "Succeeded" } else { "Running" };
            // Failed pods of jobs stay, as a record.
            if phase != wanted && !(kind == "Job" && phase == "Failed") {
                troubles.push(format!("{name} is {phase} on {node:?}"));
            }
            if pod.metadata.deletion_timestamp.is_some() || kind != "Job" && !nodes.contains(&node) {
                troubles.push(format!("{name} on {node:?} should have gone"));
            }
            if pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty()) {
                troubles.push(format!("{name} has a finalizer"));
            }
            let app = pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).cloned();
            apps.entry(app.unwrap_or_default()).or_default().push(pod);
        }
        let of = |app: &String| apps.get(app).map(Vec::as_slice).unwrap_or_default();
        for n in 0..size.each {
            let daemon = format!("daemon{n}");
            let on: BTreeSet<String> = of(&daemon)
                .iter()
                .filter_map(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
                .collect();
            if of(&daemon).len() != nodes.len() || on != nodes {
                troubles.push(format!(
                    "{daemon}: {} pods on {} nodes of {}",
                    of(&daemon).len(),
                    on.len(),
                    nodes.len()
                ));
            }
            let (deploy, set) = (format!("deploy{n}"), format!("set{n}"));
            for app in [&deploy, &set] {
                if of(app).len() != 3 {
                    troubles.push(format!("{app}: {} pods of 3", of(app).len()));
                }
            }
            let owned =
                sets.iter().filter(|set| owner_of(*set).is_some_and(|(_, name)| name == deploy)).count();
            if owned != 1 {
                troubles.push(format!("{deploy} has {owned} replica sets"));
            }
            self.add_status_differences(n, nodes.len(), &mut troubles).await;
        }
        troubles
    }

    /// Differences in the statuses of the workloads with this number.
    async fn add_status_differences(&self, n: usize, nodes: usize, troubles: &mut Vec<String>) {
        let (daemon, deploy, set) = (format!("daemon{n}"), format!("deploy{n}"), format!("set{n}"));
        let job = self.client.get::<Job>("default", &format!("job{n}")).await.expect("a job");
        let status = job.status.unwrap_or_default();
        let done =
            |kind: &str| status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True");
        if !done("Complete") || status.succeeded != Some(4) {
            troubles.push(format!(
                "job{n}: {:?} succeeded, complete: {}",
                status.succeeded,
                done("Complete")
            ));
        }
        let status = self.client.get::<DaemonSet>("default", &daemon).await.expect("it").status;
        let available = status.and_then(|status| status.number_available).unwrap_or(0);
        if usize::try_from(available).ok() != Some(nodes) {
            troubles.push(format!("{daemon} says {available} available"));
        }
        let status = self.client.get::<StatefulSet>("default", &set).await.expect("it").status;
        if status.and_then(|status| status.available_replicas) != Some(3) {
            troubles.push(format!("{set} does not report 3 available"));
        }
        let status = self.client.get::<Deployment>("default", &deploy).await.expect("it").status;
        if status.and_then(|status| status.available_replicas) != Some(3) {
            troubles.push(format!("{deploy} does not report 3 available"));
        }
    }
}

fn owner(pod: &Pod) -> Option<(String, String)> {
    owner_of(pod)
}

fn owner_of<K: Object>(object: &K) -> Option<(String, String)> {
    runtime::controller_of(object.metadata()).map(|owner| (owner.kind.clone(), owner.name.clone()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_killed_components_converge() -> Result<()> {
    let size = size();
    let seed =
        std::env::var("FERRY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut world = World::start(&size).await?;
    world.populate(&size).await?;
    let end = Instant::now() + size.chaos;
    while Instant::now() < end {
        world.trouble(&mut random).await?;
    }
    world.controllers.restart();
    world.scheduler.restart();
    if size.nodes_return {
        for number in 0..size.nodes {
            simulate::register(&world.client, &world.fleet, number, &Clock::system()).await?;
        }
    }
    let seen = async || world.differences(&size).await;
    eventually("the state is as desired", size.settle, seen, Vec::is_empty).await;
    // And the state is stable: it is the same after all components have done new work.
    let select = json!({ "matchLabels": { "app": "later" } });
    let later = json!({ "metadata": { "name": "later" },
        "spec": { "replicas": 1, "selector": select, "template": template("later") } });
    world.create::<Deployment>(later).await?;
    let available = async || {
        let status = world.client.get::<Deployment>("default", "later").await.expect("it").status;
        status.and_then(|status| status.available_replicas)
    };
    eventually("a later deployment", size.settle, available, |replicas| *replicas == Some(1)).await;
    let later = world.differences(&size).await;
    assert!(later.is_empty(), "{later:?}");
    world.controllers.kill();
    world.scheduler.kill();
    world.nodes.abort();
    world.server.stop().await
}
