//! Changes of the pods of a set, and its desired status.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use objects::core::v1::Pod;
use objects::meta::v1::Time;

use super::{Replicated, as_wait};
use crate::shared::pod_facts;
use crate::shared::selector;

/// Maximum number of pods created or deleted in one reconciliation: Kubernetes' value.
const BURST: usize = 500;
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Input of a reconciliation.
pub struct ObservedReplicas<'a, R> {
    pub set: &'a R,
    /// Pods that the set controls.
    pub pods: &'a [Arc<Pod>],
    /// Pods of its siblings and its own, to count pods by node.
    pub related: Vec<Arc<Pod>>,
    pub now: Timestamp,
}

/// Changes of a reconciliation.
#[derive(Debug, Default)]
pub struct ReplicasPlan {
    pub create: usize,
    pub delete: Vec<Arc<Pod>>,
    /// Ages of the ready pods to delete as multiples of the age of the youngest ready pod.
    pub age_ratios: Vec<f64>,
}

/// Status of a set of any kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub replicas: i32,
    pub fully_labeled: i32,
    pub ready: i32,
    pub available: i32,
    pub terminating: Option<i32>,
    pub observed_generation: i64,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Option<Time>,
}

/// Error of creating or deleting pods.
pub type Failure = str;

/// Number of pods to create, or pods to delete.
#[must_use]
pub fn plan<R: Replicated>(observed: &ObservedReplicas<'_, R>) -> ReplicasPlan {
    let mut active: Vec<Arc<Pod>> =
        observed.pods.iter().filter(|pod| pod_facts::is_active(pod)).cloned().collect();
    let wanted = usize::try_from(observed.set.replicas()).unwrap_or(0);
    if active.len() <= wanted {
        return ReplicasPlan { create: (wanted - active.len()).min(BURST), ..ReplicasPlan::default() };
    }
    let surplus = (active.len() - wanted).min(BURST);
    if surplus < active.len() {
        let crowds = crowds(&observed.related);
        active.sort_by(|a, b| goes_first(a, b, &crowds, observed.now));
        let age_ratios = age_ratios(&active, surplus, observed.now);
        active.truncate(surplus);
        return ReplicasPlan { create: 0, delete: active, age_ratios };
    }
    active.truncate(surplus);
    ReplicasPlan { delete: active, ..ReplicasPlan::default() }
}

/// Ratios of whole numbers, as in Kubernetes, of the first `surplus` pods.
fn age_ratios(pods: &[Arc<Pod>], surplus: usize, now: Timestamp) -> Vec<f64> {
    let age = |pod: &Arc<Pod>| Some(now.duration_since(created(pod)?).as_millis().max(1));
    let ready = |pod: &&Arc<Pod>| pod_facts::is_ready(pod);
    let Some(youngest) = pods.iter().filter(ready).filter_map(age).min() else { return Vec::new() };
    let chosen = pods.iter().take(surplus).filter(ready).filter_map(age);
    chosen.map(|age| age.checked_div(youngest).unwrap_or(1) as f64).collect()
}

/// Active related pods by node.
fn crowds(related: &[Arc<Pod>]) -> HashMap<String, usize> {
    let mut crowds = HashMap::new();
    for pod in related.iter().filter(|pod| pod_facts::is_active(pod)) {
        *crowds.entry(node_of(pod).to_owned()).or_insert(0) += 1;
    }
    crowds
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// Kubernetes' order: unassigned, pending, unready, low deletion cost, on crowded nodes, recently ready, often
/// restarted, young. Ages are compared by magnitude, so that not always the youngest is deleted.
fn goes_first(a: &Pod, b: &Pod, crowds: &HashMap<String, usize>, now: Timestamp) -> Ordering {
    let is_assigned = |pod| !node_of(pod).is_empty();
    let phase = |pod| match pod_facts::phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let crowd = |pod| crowds.get(node_of(pod)).copied().unwrap_or(0);
    is_assigned(a)
        .cmp(&is_assigned(b))
        .then_with(|| phase(a).cmp(&phase(b)))
        .then_with(|| pod_facts::is_ready(a).cmp(&pod_facts::is_ready(b)))
        .then_with(|| deletion_cost(a).cmp(&deletion_cost(b)))
        .then_with(|| crowd(b).cmp(&crowd(a)))
        .then_with(|| magnitude(ready_since(a), now).cmp(&magnitude(ready_since(b), now)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| magnitude(created(a), now).cmp(&magnitude(created(b), now)))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(DELETION_COST)?.parse().ok()).unwrap_or(0)
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = pod_facts::condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Binary logarithm of an age; a missing age is below all.
fn magnitude(since: Option<Timestamp>, now: Timestamp) -> i64 {
    let Some(since) = since else { return -2 };
    let age = now.as_nanosecond().saturating_sub(since.as_nanosecond());
    u128::try_from(age).ok().filter(|age| *age > 0).map_or(-1, |age| i64::from(age.ilog2()))
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    statuses.unwrap_or_default().iter().map(|status| status.restart_count).max().unwrap_or(0)
}

/// Desired status, and the requeue time if nothing changes.
#[must_use]
pub fn status<R: Replicated>(
    observed: &ObservedReplicas<'_, R>,
    failure: Option<&Failure>,
) -> (Status, Option<Duration>) {
    let ObservedReplicas { set, pods, now, .. } = observed;
    let min_ready = set.min_ready_seconds();
    let template = set.template().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|meta| meta.labels.clone()).unwrap_or_default();
    let active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod_facts::is_active(pod)).collect();
    let count = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
    };
    let terminating = pods.iter().filter(|pod| pod_facts::is_terminating(pod)).count();
    let old = set.status();
    let mut conditions = old.conditions;
    let replicas = count(&|_| true);
    let reported = conditions.iter().any(|condition| condition.kind == REPLICA_FAILURE);
    match failure {
        Some(message) if !reported => conditions.push(Condition {
            kind: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: if replicas < set.replicas() { "FailedCreate" } else { "FailedDelete" }.to_owned(),
            message: message.to_owned(),
            since: Some(Time(*now)),
        }),
        Some(_) => {}
        None => conditions.retain(|condition| condition.kind != REPLICA_FAILURE),
    }
    let status = Status {
        replicas,
        fully_labeled: count(&|pod| selector::holds(&labels, pod.metadata.labels.as_ref())),
        ready: count(&|pod| pod_facts::is_ready(pod)),
        available: count(&|pod| pod_facts::is_available(pod, min_ready, *now)),
        terminating: R::COUNTS_TERMINATING.then(|| i32::try_from(terminating).unwrap_or(i32::MAX)),
        observed_generation: set.metadata().generation.unwrap_or(0),
        conditions,
    };
    let next = active.iter().filter_map(|pod| pod_facts::available_in(pod, min_ready, *now)).min();
    (status, next.map(as_wait))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, meta, pod, ready_at};
    use objects::apps::v1::{ReplicaSet, ReplicaSetSpec};

    fn set(replicas: i32) -> ReplicaSet {
        ReplicaSet {
            metadata: meta("web"),
            spec: Some(ReplicaSetSpec { replicas: Some(replicas), ..ReplicaSetSpec::default() }),
            status: None,
        }
    }

    fn on_node(mut pod: Pod, node: &str) -> Pod {
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        pod
    }

    fn planned(replicas: i32, pods: Vec<Pod>) -> (usize, Vec<String>) {
        let (set, pods): (_, Vec<_>) = (set(replicas), pods.into_iter().map(Arc::new).collect());
        let plan = plan(&ObservedReplicas { set: &set, pods: &pods, related: pods.clone(), now: at(1000) });
        let mut names: Vec<String> = plan.delete.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
        names.sort();
        (plan.create, names)
    }

    #[test]
    fn finished_and_terminating_pods_are_replaced() {
        let mut leaving = pod("leaving", "Running");
        leaving.metadata.deletion_timestamp = Some(Time(at(1)));
        let pods = vec![pod("a", "Running"), pod("failed", "Failed"), leaving];
        assert_eq!(planned(3, pods), (2, vec![]));
        assert_eq!(planned(100_000, vec![]), (BURST, vec![]));
        assert_eq!(planned(-1, vec![]), (0, vec![]));
    }

    #[test]
    fn surplus_pods_are_deleted_in_order() {
        let running = |name: &str, node: &str| on_node(pod(name, "Running"), node);
        let ready = |name: &str, node: &str, since| ready_at(running(name, node), since);
        let mut cheap = ready("cheap", "n1", 10);
        cheap.metadata.annotations = Some([(DELETION_COST.to_owned(), "-5".to_owned())].into());
        let all = || {
            vec![
                ready("old", "n1", 10),
                ready("young", "n1", 999),
                cheap.clone(),
                running("unready", "n1"),
                on_node(pod("starting", "Pending"), "n1"),
                pod("unassigned", "Pending"),
            ]
        };
        let want = ["unassigned", "starting", "unready", "cheap", "young", "old"];
        for keep in 0..=want.len() {
            let mut gone: Vec<String> = want[..want.len() - keep].iter().map(ToString::to_string).collect();
            gone.sort();
            assert_eq!(planned(i32::try_from(keep).expect("small"), all()), (0, gone));
        }
        // Of two equal pods, the one on the more crowded node is deleted.
        let crowded = vec![ready("a", "n1", 10), ready("b", "n2", 10), ready("c", "n2", 10)];
        assert_ne!(planned(2, crowded).1, ["a"]);
    }

    #[test]
    fn age_ratios_are_those_of_ready_pods_to_the_youngest() {
        let created = |name: &str, since| {
            let mut pod = ready_at(pod(name, "Running"), since);
            pod.metadata.creation_timestamp = Some(Time(at(since)));
            Arc::new(pod)
        };
        let mut unready = pod("unready", "Running");
        unready.metadata.creation_timestamp = Some(Time(at(999)));
        let pods = [created("old", 0), created("young", 900), Arc::new(unready)];
        assert_eq!(age_ratios(&pods, 3, at(1000)), [10.0, 1.0]);
        assert_eq!(age_ratios(&pods, 1, at(1000)), [10.0]);
        assert!(age_ratios(&pods[2..], 1, at(1000)).is_empty());
    }

    #[test]
    fn status_has_counts_and_requeue_time() {
        let mut set = set(3);
        set.metadata.generation = Some(4);
        let spec = set.spec.get_or_insert_default();
        spec.min_ready_seconds = Some(30);
        let mut leaving = pod("leaving", "Running");
        leaving.metadata.deletion_timestamp = Some(Time(at(1)));
        let pods: Vec<Arc<Pod>> = [
            ready_at(pod("a", "Running"), 960),
            ready_at(pod("b", "Running"), 980),
            pod("c", "Pending"),
            leaving,
        ]
        .into_iter()
        .map(Arc::new)
        .collect();
        let observed = ObservedReplicas { set: &set, pods: &pods, related: vec![], now: at(1000) };
        let (new, next) = status(&observed, Some("quota"));
        assert_eq!((new.replicas, new.ready, new.available, new.terminating), (3, 2, 1, Some(1)));
        assert_eq!((new.observed_generation, new.fully_labeled), (4, 3));
        assert_eq!(new.conditions[0].message, "quota");
        assert_eq!(next.map(|next| next.as_secs()), Some(10));
        set.set_status(new);
        let observed = ObservedReplicas { set: &set, pods: &pods, related: vec![], now: at(1001) };
        assert_eq!(status(&observed, Some("other")).0.conditions[0].message, "quota", "the first is kept");
        assert!(status(&observed, None).0.conditions.is_empty());
    }
}
