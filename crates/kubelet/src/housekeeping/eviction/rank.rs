//! Eviction order of pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::core::v1::Pod;

use super::signals::Signal;
use crate::configure::labels;
use crate::lifecycle::members::members;
use crate::lifecycle::phase::has_ended;
use crate::lifecycle::qos;
use crate::shared::Shared;

/// Lowest priority of system-critical pods.
const CRITICAL: i32 = 2_000_000_000;

/// A pod with its usage and requests.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    pub uid: String,
    priority: i32,
    used: i64,
    requested: i64,
    /// Name, usage and request of containers that exceed their requests.
    over: Vec<(String, i64, i64)>,
}

impl Candidate {
    /// Describes the containers that exceed their requests, in Kubernetes' wording.
    #[must_use]
    pub fn excess(&self, resource: &str) -> String {
        let one = |(name, used, requested): &(String, i64, i64)| {
            let (used, requested) = (shown(*used), shown(*requested));
            format!(
                "Container {name} was using {used}, request is {requested}, has larger consumption of {resource}. "
            )
        };
        self.over.iter().map(one).collect()
    }
}

/// Formats an amount in human-readable units.
#[must_use]
pub fn shown(amount: i64) -> String {
    match amount {
        0 => "0".to_owned(),
        _ if amount % (1 << 20) == 0 => format!("{}Mi", amount >> 20),
        _ if amount > 1 << 20 => format!("{}Ki", amount >> 10),
        _ => amount.to_string(),
    }
}

/// Pods that may be evicted, with their usage.
pub async fn candidates(shared: &Shared, pods: &[Arc<Pod>], signal: Signal) -> Vec<Candidate> {
    let mut used: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for one in shared.engine.container_stats().await.unwrap_or_default() {
        let Some(attributes) = &one.attributes else { continue };
        let (Some(uid), Some(name)) =
            (attributes.labels.get(labels::POD_UID), attributes.labels.get(labels::CONTAINER_NAME))
        else {
            continue;
        };
        let amount = match signal {
            Signal::Memory => one.memory.as_ref().and_then(|memory| memory.working_set_bytes.as_ref()),
            Signal::NodeFs | Signal::ImageFs => {
                one.writable_layer.as_ref().and_then(|layer| layer.used_bytes.as_ref())
            }
            Signal::NodeFsInodes | Signal::ImageFsInodes => {
                one.writable_layer.as_ref().and_then(|layer| layer.inodes_used.as_ref())
            }
            Signal::Pids => None,
        };
        let amount = amount.map_or(0, |value| i64::try_from(value.value).unwrap_or(i64::MAX));
        used.entry(uid.clone()).or_default().insert(name.clone(), amount);
    }
    let none = BTreeMap::new();
    pods.iter()
        .filter(|pod| is_evictable(pod))
        .map(|pod| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            candidate(pod, used.get(&uid).unwrap_or(&none), signal.resource())
        })
        .collect()
}

fn is_evictable(pod: &Pod) -> bool {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    !has_ended(pod)
        && priority.is_none_or(|priority| priority < CRITICAL)
        && !crate::static_pods::is_static(pod)
}

fn candidate(pod: &Pod, used: &BTreeMap<String, i64>, resource: &str) -> Candidate {
    let spec = pod.spec.as_ref();
    let mut over = Vec::new();
    for member in spec.map(members).unwrap_or_default() {
        let requests = member.container.resources.as_ref().and_then(|own| own.requests.as_ref());
        let requested = qos::whole(requests, resource).unwrap_or(0);
        let usage = used.get(member.name()).copied().unwrap_or(0);
        if usage > requested {
            over.push((member.name().to_owned(), usage, requested));
        }
    }
    Candidate {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        used: used.values().fold(0, |sum, amount| sum.saturating_add(*amount)),
        requested: spec.map_or(0, |spec| qos::pod_requests(spec, resource) / 1000),
        priority: spec.and_then(|spec| spec.priority).unwrap_or(0),
        over,
    }
}

/// Sorts by exceeding requests, then by lower priority, then by usage above requests.
#[must_use]
pub fn ranked(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by_key(|one| {
        let over = one.used.saturating_sub(one.requested);
        (over <= 0, one.priority, std::cmp::Reverse(over))
    });
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_sorts_by_requests_priority_usage() {
        let pod = |uid: &str, priority, used, requested| Candidate {
            uid: uid.to_owned(),
            priority,
            used,
            requested,
            over: Vec::new(),
        };
        let order = ranked(vec![
            pod("modest", 0, 10, 20),
            pod("important", 100, 500, 10),
            pod("greedy", 0, 300, 10),
            pod("over", 0, 50, 10),
        ]);
        let order: Vec<_> = order.iter().map(|one| one.uid.as_str()).collect();
        assert_eq!(order, ["greedy", "over", "important", "modest"]);
    }

    #[test]
    fn eviction_message_names_containers_over_requests() {
        let one = Candidate { over: vec![("c".to_owned(), 3 << 20, 0)], ..Candidate::default() };
        assert_eq!(
            one.excess("memory"),
            "Container c was using 3Mi, request is 0, has larger consumption of memory. "
        );
    }
}
