//! NodeResourcesFit: a node must have a pod's requests available; scores by least or most allocated, or by the
//! requested-to-capacity ratio.

use std::borrow::Cow;
use std::collections::HashSet;

use objects::resource::v1::DeviceClass;

use crate::allocation::{Strategy, WeightedResource, score};
use crate::devices::CLASS_RESOURCE_PREFIX;
use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Reason, Reasons, Rejection};
use crate::state::{Cluster, NodeInfo, PodInfo, Resources, is_extended};

pub struct NodeResourcesFit {
    pub ignored: HashSet<String>,
    pub ignored_groups: HashSet<String>,
    pub strategy: Strategy,
    pub resources: Box<[WeightedResource]>,
}

impl Default for NodeResourcesFit {
    fn default() -> Self {
        Self {
            ignored: HashSet::new(),
            ignored_groups: HashSet::new(),
            strategy: Strategy::LeastAllocated,
            resources: WeightedResource::defaults(),
        }
    }
}

impl NodeResourcesFit {
    fn ignores(&self, name: &str) -> bool {
        is_extended(name)
            && (self.ignored.contains(name)
                || name.split_once('/').is_some_and(|(group, _)| self.ignored_groups.contains(group)))
    }

    fn fits(&self, cluster: &Cluster, requests: &Resources, node: &NodeInfo) -> Result<(), Rejection> {
        let used = &node.requested;
        let has = &node.allocatable;
        let mut lacking: Vec<Reason> = Vec::new();
        let mut never = false;
        let mut lacks = |reason: Reason, requests: i64, has: i64| {
            lacking.push(reason);
            never |= requests > has;
        };
        let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
        if pods + 1 > node.max_pods {
            lacks(Cow::Borrowed("Too many pods"), 0, 0);
        }
        if requests.milli_cpu > 0 && requests.milli_cpu > has.milli_cpu - used.milli_cpu {
            lacks(Cow::Borrowed("Insufficient cpu"), requests.milli_cpu, has.milli_cpu);
        }
        if requests.memory > 0 && requests.memory > has.memory - used.memory {
            lacks(Cow::Borrowed("Insufficient memory"), requests.memory, has.memory);
        }
        if requests.ephemeral_storage > 0
            && requests.ephemeral_storage > has.ephemeral_storage - used.ephemeral_storage
        {
            lacks(
                Cow::Borrowed("Insufficient ephemeral-storage"),
                requests.ephemeral_storage,
                has.ephemeral_storage,
            );
        }
        for (name, amount) in &requests.scalar {
            if *amount > 0
                && *amount > has.get(name) - used.get(name)
                && !self.ignores(name)
                && !is_backed_by_devices(cluster, name, node)
            {
                lacks(format!("Insufficient {name}").into(), *amount, has.get(name));
            }
        }
        match lacking.len() {
            0 => Ok(()),
            1 => Err(Rejection { reasons: Reasons::One(lacking.remove(0)), unresolvable: never }),
            _ => Err(Rejection { reasons: Reasons::Many(lacking), unresolvable: never }),
        }
    }
}

/// Reports whether DynamicResources provides a resource on a node that has none of it itself.
fn is_backed_by_devices(cluster: &Cluster, name: &str, node: &NodeInfo) -> bool {
    node.allocatable.get(name) <= 0 && cluster.devices.class_of_resource(name).is_some()
}

/// Reports whether a class maps a requested resource that it did not map before.
fn maps_request(requests: &Resources, old: Option<&DeviceClass>, new: &DeviceClass) -> bool {
    let explicit = new.spec.extended_resource_name.as_deref();
    if old.is_some_and(|old| old.spec.extended_resource_name.as_deref() == explicit) {
        return false;
    }
    let name = new.metadata.name.as_deref().unwrap_or_default();
    let implicit = format!("{CLASS_RESOURCE_PREFIX}{name}");
    let is_requested = |name: &str| requests.scalar(name).is_some();
    old.is_none() && is_requested(&implicit) || explicit.is_some_and(is_requested)
}

#[derive(Clone)]
struct NodeResourcesFitFilter<'a> {
    plugin: &'a NodeResourcesFit,
    cluster: &'a Cluster,
    requests: &'a Resources,
}

impl<'a> Filter<'a> for NodeResourcesFitFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        self.plugin.fits(self.cluster, self.requests, node)
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for NodeResourcesFit {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        PreFilter::Check(Box::new(NodeResourcesFitFilter {
            plugin: self,
            cluster: cycle.cluster,
            requests: &cycle.pod.requests.exact,
        }))
    }

    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        score(&self.strategy, &self.resources, cycle.pod, nodes, scores);
        true
    }

    fn interests(&self) -> Actions {
        Actions::POD_DELETE
            .or(Actions::POD_SCALE_DOWN)
            .or(Actions::NODE_ADD)
            .or(Actions::NODE_ALLOCATABLE)
            .or(Actions::DEVICE_CLASS_ADD)
            .or(Actions::DEVICE_CLASS_UPDATE)
    }

    fn helps(&self, cluster: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        let requests = &pod.requests.exact;
        match changed {
            Changed::Pod { old: Some(gone), new: None } => {
                gone.node_name().is_some() || gone.nominated_node().is_some()
            }
            Changed::Pod { old: Some(old), new: Some(new) } => {
                let less = |name: &str| old.requests.exact.get(name) > new.requests.exact.get(name);
                new.uid == pod.uid
                    || new.node_name().is_some()
                        && (requests.milli_cpu > 0 && less("cpu")
                            || requests.memory > 0 && less("memory")
                            || requests.ephemeral_storage > 0 && less("ephemeral-storage")
                            || requests.scalar.iter().any(|(name, amount)| *amount > 0 && less(name)))
            }
            Changed::Node { old, new: Some(new) } => {
                let empty = NodeInfo { pods: Vec::new(), ..new.clone() };
                let more = |old: &NodeInfo, name: &str| new.allocatable.get(name) > old.allocatable.get(name);
                let backed = |name: &str| is_backed_by_devices(cluster, name, new);
                self.fits(cluster, requests, &empty).is_ok()
                    && old.is_none_or(|old| {
                        new.max_pods > old.max_pods
                            || requests.milli_cpu > 0 && more(old, "cpu")
                            || requests.memory > 0 && more(old, "memory")
                            || requests.ephemeral_storage > 0 && more(old, "ephemeral-storage")
                            || requests
                                .scalar
                                .iter()
                                .any(|(name, amount)| *amount > 0 && (more(old, name) || backed(name)))
                    })
            }
            Changed::DeviceClass { old, new } => maps_request(requests, old, new),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::Shape;
    use crate::plugins::tests::{reasons, scores};
    use crate::testing::{cluster, node, pod};
    use serde_json::json;

    #[test]
    fn fit_rejects_nodes_without_free_resources() {
        let cluster = cluster(
            [
                node("a")
                    .allocatable(json!({"cpu": "4", "memory": "8Gi", "pods": "2", "example.com/gpu": "1"})),
                node("full").allocatable(json!({"cpu": "4", "memory": "8Gi", "pods": "1"})),
            ],
            [pod("1").cpu("3").on("a"), pod("2").cpu("1").on("full")],
        );
        let fit = NodeResourcesFit::default();
        for (requests, expected) in [
            (pod("p").cpu("1"), ["a: ", "full: Too many pods"]),
            (pod("p").cpu("2"), ["a: Insufficient cpu", "full: Too many pods"]),
            (pod("p").cpu("3500m"), ["a: Insufficient cpu", "full: Too many pods, Insufficient cpu"]),
            (pod("p").cpu("5"), ["a: !Insufficient cpu", "full: !Too many pods, Insufficient cpu"]),
            (
                pod("p").request("memory", "9Gi"),
                ["a: !Insufficient memory", "full: !Too many pods, Insufficient memory"],
            ),
            (
                pod("p").request("example.com/gpu", "1"),
                ["a: ", "full: !Too many pods, Insufficient example.com/gpu"],
            ),
            (
                pod("p").request("example.com/gpu", "2"),
                ["a: !Insufficient example.com/gpu", "full: !Too many pods, Insufficient example.com/gpu"],
            ),
            (
                pod("p").request("ephemeral-storage", "1"),
                [
                    "a: !Insufficient ephemeral-storage",
                    "full: !Too many pods, Insufficient ephemeral-storage",
                ],
            ),
            (pod("p"), ["a: ", "full: Too many pods"]),
        ] {
            assert_eq!(reasons(&fit, &cluster, requests), expected);
        }
    }

    #[test]
    fn fit_skips_ignored_extended_resources() {
        let cluster = cluster([node("a")], []);
        let gpu_pod = || pod("p").request("example.com/gpu", "1");
        let named = NodeResourcesFit { ignored: ["example.com/gpu".to_owned()].into(), ..Default::default() };
        let grouped =
            NodeResourcesFit { ignored_groups: ["example.com".to_owned()].into(), ..Default::default() };
        assert_eq!(reasons(&named, &cluster, gpu_pod()), ["a: "]);
        assert_eq!(reasons(&grouped, &cluster, gpu_pod()), ["a: "]);
    }

    #[test]
    fn fit_scores_nodes_by_strategy() {
        let size = || json!({"cpu": "4", "memory": "10000", "pods": "110"});
        let cluster = cluster(
            [node("empty").allocatable(size()), node("busy").allocatable(size())],
            [pod("1").cpu("2").request("memory", "5000").on("busy")],
        );
        let requests = || pod("p").cpu("1").request("memory", "2500");
        let with = |strategy| NodeResourcesFit { strategy, ..Default::default() };
        assert_eq!(scores(&with(Strategy::LeastAllocated), &cluster, requests()), Some(vec![75, 25]));
        assert_eq!(scores(&with(Strategy::MostAllocated), &cluster, requests()), Some(vec![25, 75]));
        let shape = Strategy::RequestedToCapacityRatio(Shape(Box::new([(0, 10), (100, 0)])));
        assert_eq!(scores(&with(shape), &cluster, requests()), Some(vec![75, 25]));
    }

    #[test]
    fn queueing_hint_needs_more_free_resources() {
        let fit = NodeResourcesFit::default();
        let cluster = Cluster::new();
        let waiting = pod("p").cpu("2").info();
        let of = |cpu: &str| {
            let mut info = NodeInfo::new(0, "n");
            info.set_node(node("n").allocatable(json!({"cpu": cpu, "memory": "1Gi", "pods": "10"})).arc());
            info
        };
        let (small, large) = (of("1"), of("4"));
        let helps =
            |old, new| fit.helps(&cluster, &waiting, Actions::NODE_ALLOCATABLE, Changed::Node { old, new });
        assert!(helps(None, Some(&large)));
        assert!(!helps(None, Some(&small)));
        assert!(helps(Some(&small), Some(&large)));
        assert!(!helps(Some(&large), Some(&large)));
        let (before, after) = (pod("x").cpu("2").on("n").info(), pod("x").cpu("1").on("n").info());
        let changed = |old, new| Changed::Pod { old, new };
        assert!(fit.helps(
            &cluster,
            &waiting,
            Actions::POD_SCALE_DOWN,
            changed(Some(&*before), Some(&*after))
        ));
        assert!(!fit.helps(
            &cluster,
            &waiting,
            Actions::POD_SCALE_DOWN,
            changed(Some(&*after), Some(&*before))
        ));
        assert!(fit.helps(&cluster, &waiting, Actions::POD_DELETE, changed(Some(&*before), None)));
    }
}
