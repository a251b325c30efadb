//! Tests of the pure part of the stateful set loop, one reconciliation at a time.

use std::collections::HashMap;
use std::sync::Arc;

use objects::IntOrString;
use objects::apps::v1::{
    ControllerRevision, RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetOrdinals,
    StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetStatus,
    StatefulSetUpdateStrategy,
};
use objects::core::v1::{Container, PersistentVolumeClaim, Pod, PodSpec, PodStatus, PodTemplateSpec};
use objects::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use super::plan::{ObservedStatefulSet, StatefulSetChange, StatefulSetPlan, plan, status_differs};
use crate::shared::fixture::{at, meta, ready_at, time};
use crate::shared::history;

fn template(image: &str) -> PodTemplateSpec {
    let container = Container { name: "c".into(), image: Some(image.into()), ..Container::default() };
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some([("app".into(), "web".into())].into()),
            ..Default::default()
        }),
        spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
    }
}

fn set(replicas: i32, change: impl FnOnce(&mut StatefulSetSpec)) -> StatefulSet {
    let mut spec = StatefulSetSpec {
        replicas: Some(replicas),
        selector: LabelSelector {
            match_labels: Some([("app".into(), "web".into())].into()),
            ..Default::default()
        },
        service_name: Some("svc".into()),
        template: template("new"),
        update_strategy: Some(StatefulSetUpdateStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(RollingUpdateStatefulSetStrategy {
                partition: Some(0),
                max_unavailable: None,
            }),
        }),
        pod_management_policy: Some("OrderedReady".into()),
        ..StatefulSetSpec::default()
    };
    change(&mut spec);
    StatefulSet { metadata: meta("web"), spec: Some(spec), status: Some(StatefulSetStatus::default()) }
}

fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
    Arc::new(history::new_revision(&template(image), &meta("web"), OwnerReference::default(), number, 0))
}

fn observe(set: StatefulSet, pods: Vec<Pod>) -> ObservedStatefulSet {
    ObservedStatefulSet {
        set: Arc::new(set),
        pods: pods.into_iter().map(Arc::new).collect(),
        claims: HashMap::new(),
        current: revision("old", 1),
        update: revision("new", 2),
        collisions: 0,
        now: at(1000),
    }
}

/// Pods that a plan creates, running and ready.
fn born(change: &StatefulSetChange) -> Option<Pod> {
    let StatefulSetChange::Create(pod) = change else { return None };
    let mut pod = pod.as_ref().clone();
    pod.metadata.uid = pod.metadata.name.as_ref().map(|name| format!("uid-{name}"));
    pod.status = Some(PodStatus { phase: Some("Running".into()), ..PodStatus::default() });
    Some(ready_at(pod, 10))
}

/// Ready pods 0..n of the given revision.
fn ready_pods(set: &StatefulSet, n: i32, image: &str) -> Vec<Pod> {
    let mut whole = set.clone();
    let spec = whole.spec.get_or_insert_default();
    spec.replicas = Some(n);
    spec.pod_management_policy = Some("Parallel".into());
    let mut observed = observe(whole, vec![]);
    observed.update = revision(image, 1);
    plan(&observed).changes.iter().filter_map(born).collect()
}

fn describe(plan: &StatefulSetPlan) -> Vec<String> {
    let name = |meta: &ObjectMeta| meta.name.clone().unwrap_or_default();
    let text = |change: &StatefulSetChange| match change {
        StatefulSetChange::CreateClaim(claim, _) => format!("claim {}", name(&claim.metadata)),
        StatefulSetChange::UpdateClaim(claim) => {
            let owners = claim.metadata.owner_references.iter().flatten().map(|owner| owner.kind.as_str());
            format!("own {} {}", name(&claim.metadata), owners.collect::<Vec<_>>().join(","))
        }
        StatefulSetChange::Create(pod) => format!("create {}", name(&pod.metadata)),
        StatefulSetChange::Update(pod) => format!("update {}", name(&pod.metadata)),
        StatefulSetChange::Delete(pod) => format!("delete {}", name(&pod.metadata)),
        StatefulSetChange::Blocked(why) => format!("blocked {why}"),
    };
    plan.changes.iter().map(text).collect()
}

#[test]
fn ordered_set_creates_one_by_one_and_parallel_all() {
    let mut pods = Vec::new();
    for expected in ["create web-0", "create web-1", "create web-2"] {
        let plan = plan(&observe(set(3, |_| {}), pods.clone()));
        assert_eq!(describe(&plan), [expected]);
        let pod = born(&plan.changes[0]).expect("a pod");
        let mut starting = pod.clone();
        starting.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
        let mut waiting = pods.clone();
        waiting.push(starting);
        assert!(
            describe(&self::plan(&observe(set(3, |_| {}), waiting))).is_empty(),
            "it waits for {expected}"
        );
        pods.push(pod);
    }
    let parallel = set(3, |spec| spec.pod_management_policy = Some("Parallel".into()));
    assert_eq!(describe(&plan(&observe(parallel, vec![]))), ["create web-0", "create web-1", "create web-2"]);
}

#[test]
fn pods_have_name_and_ordinal_labels() {
    let first = set(1, |spec| spec.ordinals = Some(StatefulSetOrdinals { start: Some(5) }));
    let plan = plan(&observe(first, vec![]));
    let pod = born(&plan.changes[0]).expect("a pod");
    assert_eq!(pod.metadata.name.as_deref(), Some("web-5"));
    let labels = pod.metadata.labels.expect("labels");
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "web-5");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "5");
    assert_eq!(Some(&labels["controller-revision-hash"]), revision("new", 2).metadata.name.as_ref());
    let spec = pod.spec.expect("a spec");
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("web-5"), Some("svc")));
}

#[test]
fn scale_down_deletes_highest_ordinal_first() {
    let set = set(1, |_| {});
    let pods = ready_pods(&set, 3, "new");
    assert_eq!(describe(&plan(&observe(set.clone(), pods.clone()))), ["delete web-2"]);
    let mut going = pods.clone();
    going[2].metadata.deletion_timestamp = Some(time(999));
    assert!(describe(&plan(&observe(set.clone(), going))).is_empty());
    // An unhealthy pod below blocks scaling down healthy ones, not its own deletion.
    let mut sick = pods;
    sick[1].status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
    assert_eq!(describe(&plan(&observe(set.clone(), sick.clone()))), ["delete web-2"]);
    sick.pop();
    assert_eq!(describe(&plan(&observe(set, sick))), ["delete web-1"]);
}

#[test]
fn rolling_update_stops_at_partition() {
    let whole = set(3, |_| {});
    let mut pods = ready_pods(&whole, 3, "old");
    let first = plan(&observe(whole.clone(), pods.clone()));
    assert_eq!(describe(&first), ["delete web-2"]);
    assert_eq!((first.status.current_replicas, first.status.updated_replicas), (Some(2), Some(0)));
    pods[2].metadata.deletion_timestamp = Some(time(999));
    assert!(describe(&plan(&observe(whole.clone(), pods.clone()))).is_empty());
    pods.pop();
    assert_eq!(describe(&plan(&observe(whole.clone(), pods.clone()))), ["create web-2"]);
    pods.extend(ready_pods(&whole, 3, "new").pop());
    assert_eq!(describe(&plan(&observe(whole, pods.clone()))), ["delete web-1"]);
    let partitioned = set(3, |spec| {
        let strategy = spec.update_strategy.get_or_insert_default();
        strategy.rolling_update.get_or_insert_default().partition = Some(2);
    });
    assert!(describe(&plan(&observe(partitioned.clone(), pods.clone()))).is_empty());
    // A pod below the partition is recreated with its revision.
    pods.remove(1);
    let plan = plan(&observe(partitioned, pods));
    let StatefulSetChange::Create(pod) = &plan.changes[0] else { panic!("a pod") };
    assert_eq!(
        pod.metadata.labels.as_ref().map(|labels| &labels["controller-revision-hash"]),
        revision("old", 1).metadata.name.as_ref()
    );
}

#[test]
fn max_unavailable_allows_several_and_on_delete_waits() {
    let fast = set(5, |spec| {
        let strategy = spec.update_strategy.get_or_insert_default();
        strategy.rolling_update.get_or_insert_default().max_unavailable =
            Some(IntOrString::String("40%".into()));
    });
    let pods = ready_pods(&fast, 5, "old");
    assert_eq!(describe(&plan(&observe(fast, pods.clone()))), ["delete web-4", "delete web-3"]);
    let manual = set(5, |spec| {
        spec.update_strategy =
            Some(StatefulSetUpdateStrategy { type_: Some("OnDelete".into()), rolling_update: None });
    });
    assert!(describe(&plan(&observe(manual, pods))).is_empty());
}

#[test]
fn finished_rollout_promotes_update_revision() {
    let whole = set(2, |_| {});
    let pods = ready_pods(&whole, 2, "new");
    let plan = plan(&observe(whole.clone(), pods));
    assert_eq!(plan.status.current_revision, plan.status.update_revision);
    assert_eq!(plan.status.current_replicas, Some(2));
    assert!(status_differs(whole.status.as_ref(), &plan.status));
    assert!(!status_differs(Some(&plan.status), &plan.status));
}

#[test]
fn failed_pods_are_replaced_and_min_ready_is_awaited() {
    let whole = set(1, |_| {});
    let mut pods = ready_pods(&whole, 1, "new");
    pods[0].status.get_or_insert_default().phase = Some("Failed".into());
    assert_eq!(describe(&plan(&observe(whole, pods))), ["delete web-0"]);
    let patient = set(2, |spec| spec.min_ready_seconds = Some(995));
    let pods = ready_pods(&patient, 1, "new");
    let waiting = plan(&observe(patient, pods));
    assert!(describe(&waiting).is_empty());
    assert_eq!(waiting.requeue_after.map(|left| left.as_secs()), Some(5));
    assert_eq!((waiting.status.ready_replicas, waiting.status.available_replicas), (Some(1), Some(0)));
}

#[test]
fn claims_are_created_first_and_follow_retention_policy() {
    let with_claims = |replicas, when_deleted: &str, when_scaled: &str| {
        set(replicas, |spec| {
            spec.volume_claim_templates =
                Some(vec![PersistentVolumeClaim { metadata: meta("data"), ..Default::default() }]);
            spec.persistent_volume_claim_retention_policy =
                Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                    when_deleted: Some(when_deleted.into()),
                    when_scaled: Some(when_scaled.into()),
                });
        })
    };
    let one = with_claims(1, "Delete", "Retain");
    let mut observed = observe(one.clone(), vec![]);
    let first = plan(&observed);
    assert_eq!(describe(&first), ["claim data-web-0", "create web-0"]);
    let StatefulSetChange::CreateClaim(claim, _) = &first.changes[0] else { panic!("a claim") };
    assert_eq!(claim.metadata.labels.as_ref().map(|labels| labels["app"].as_str()), Some("web"));
    observed.claims.insert("data-web-0".into(), Arc::new(claim.as_ref().clone()));
    observed.pods = vec![Arc::new(born(&first.changes[1]).expect("a pod"))];
    assert_eq!(describe(&plan(&observed)), ["own data-web-0 StatefulSet"]);

    // Scaled down: the claim is deleted with its pod.
    observed.set = Arc::new(with_claims(0, "Retain", "Delete"));
    assert_eq!(describe(&plan(&observed)), ["own data-web-0 Pod", "delete web-0"]);

    // A terminating claim, or one still owned by the previous pod of the name, blocks the new pod.
    observed.set = Arc::new(with_claims(1, "Retain", "Delete"));
    observed.pods.clear();
    let mut stale = claim.as_ref().clone();
    stale.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: "web-0".into(),
        uid: "gone".into(),
        ..Default::default()
    }]);
    observed.claims.insert("data-web-0".into(), Arc::new(stale));
    assert_eq!(describe(&plan(&observed)), ["blocked claim data-web-0 still belongs to the previous pod"]);
    let mut going = claim.as_ref().clone();
    going.metadata.deletion_timestamp = Some(time(1));
    observed.claims.insert("data-web-0".into(), Arc::new(going));
    assert_eq!(describe(&plan(&observed)), ["blocked pvc data-web-0 is being deleted"]);
}
