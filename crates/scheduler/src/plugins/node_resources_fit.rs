//! NodeResourcesFit: a node must have left what a pod asks for; of those that do, the emptiest is best, or the fullest,
//! or what a configured line says.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::allocation::{Strategy, Weighed, score};
use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Reason, Reasons, Rejection};
use crate::state::{Cluster, NodeInfo, PodInfo, Resources, is_extended};

pub struct NodeResourcesFit {
    pub ignored: HashSet<String>,
    pub ignored_groups: HashSet<String>,
    pub strategy: Strategy,
    pub resources: Box<[Weighed]>,
}

impl Default for NodeResourcesFit {
    fn default() -> Self {
        Self {
            ignored: HashSet::new(),
            ignored_groups: HashSet::new(),
            strategy: Strategy::LeastAllocated,
            resources: Weighed::defaults(),
        }
    }
}

impl NodeResourcesFit {
    fn ignores(&self, name: &str) -> bool {
        is_extended(name)
            && (self.ignored.contains(name)
                || name.split_once('/').is_some_and(|(group, _)| self.ignored_groups.contains(group)))
    }

    fn fits(&self, asked: &Resources, node: &NodeInfo) -> Result<(), Rejection> {
        let used = &node.requested;
        let has = &node.allocatable;
        let mut lacking: Vec<Reason> = Vec::new();
        let mut never = false;
        let mut lacks = |reason: Reason, asked: i64, has: i64| {
            lacking.push(reason);
            never |= asked > has;
        };
        let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
        if pods + 1 > node.max_pods {
            lacks(Cow::Borrowed("Too many pods"), 0, 0);
        }
        if asked.milli_cpu > 0 && asked.milli_cpu > has.milli_cpu - used.milli_cpu {
            lacks(Cow::Borrowed("Insufficient cpu"), asked.milli_cpu, has.milli_cpu);
        }
        if asked.memory > 0 && asked.memory > has.memory - used.memory {
            lacks(Cow::Borrowed("Insufficient memory"), asked.memory, has.memory);
        }
        if asked.ephemeral_storage > 0
            && asked.ephemeral_storage > has.ephemeral_storage - used.ephemeral_storage
        {
            lacks(
                Cow::Borrowed("Insufficient ephemeral-storage"),
                asked.ephemeral_storage,
                has.ephemeral_storage,
            );
        }
        for (name, amount) in &asked.scalar {
            if *amount > 0 && !self.ignores(name) && *amount > has.get(name) - used.get(name) {
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

#[derive(Clone)]
struct Check<'a> {
    plugin: &'a NodeResourcesFit,
    asked: &'a Resources,
}

impl<'a> Filter<'a> for Check<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        self.plugin.fits(self.asked, node)
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for NodeResourcesFit {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        PreFilter::Check(Box::new(Check { plugin: self, asked: &cycle.pod.requests.exact }))
    }

    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        score(&self.strategy, &self.resources, cycle.pod, nodes, scores);
        true
    }

    fn interests(&self) -> Actions {
        Actions::POD_DELETE.or(Actions::POD_SCALE_DOWN).or(Actions::NODE_ADD).or(Actions::NODE_ALLOCATABLE)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        let asked = &pod.requests.exact;
        match changed {
            Changed::Pod { old: Some(gone), new: None } => {
                gone.node_name().is_some() || gone.nominated_node().is_some()
            }
            Changed::Pod { old: Some(old), new: Some(new) } => {
                let less = |name: &str| old.requests.exact.get(name) > new.requests.exact.get(name);
                new.uid == pod.uid
                    || new.node_name().is_some()
                        && (asked.milli_cpu > 0 && less("cpu")
                            || asked.memory > 0 && less("memory")
                            || asked.ephemeral_storage > 0 && less("ephemeral-storage")
                            || asked.scalar.iter().any(|(name, amount)| *amount > 0 && less(name)))
            }
            Changed::Node { old, new: Some(new) } => {
                let empty = NodeInfo { pods: Vec::new(), ..new.clone() };
                let more = |old: &NodeInfo, name: &str| new.allocatable.get(name) > old.allocatable.get(name);
                self.fits(asked, &empty).is_ok()
                    && old.is_none_or(|old| {
                        new.max_pods > old.max_pods
                            || asked.milli_cpu > 0 && more(old, "cpu")
                            || asked.memory > 0 && more(old, "memory")
                            || asked.ephemeral_storage > 0 && more(old, "ephemeral-storage")
                            || asked.scalar.iter().any(|(name, amount)| *amount > 0 && more(old, name))
                    })
            }
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
    fn nodes_must_have_enough_left() {
        let cluster = cluster(
            [
                node("a")
                    .allocatable(json!({"cpu": "4", "memory": "8Gi", "pods": "2", "example.com/gpu": "1"})),
                node("full").allocatable(json!({"cpu": "4", "memory": "8Gi", "pods": "1"})),
            ],
            [pod("1").cpu("3").on("a"), pod("2").cpu("1").on("full")],
        );
        let fit = NodeResourcesFit::default();
        for (asked, expected) in [
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
            assert_eq!(reasons(&fit, &cluster, asked), expected);
        }
    }

    #[test]
    fn extended_resources_can_be_ignored() {
        let cluster = cluster([node("a")], []);
        let wants = || pod("p").request("example.com/gpu", "1");
        let named = NodeResourcesFit { ignored: ["example.com/gpu".to_owned()].into(), ..Default::default() };
        let grouped =
            NodeResourcesFit { ignored_groups: ["example.com".to_owned()].into(), ..Default::default() };
        assert_eq!(reasons(&named, &cluster, wants()), ["a: "]);
        assert_eq!(reasons(&grouped, &cluster, wants()), ["a: "]);
    }

    #[test]
    fn strategies_rank_nodes() {
        let size = || json!({"cpu": "4", "memory": "10000", "pods": "110"});
        let cluster = cluster(
            [node("empty").allocatable(size()), node("busy").allocatable(size())],
            [pod("1").cpu("2").request("memory", "5000").on("busy")],
        );
        let asked = || pod("p").cpu("1").request("memory", "2500");
        let with = |strategy| NodeResourcesFit { strategy, ..Default::default() };
        assert_eq!(scores(&with(Strategy::LeastAllocated), &cluster, asked()), Some(vec![75, 25]));
        assert_eq!(scores(&with(Strategy::MostAllocated), &cluster, asked()), Some(vec![25, 75]));
        let shape = Strategy::RequestedToCapacityRatio(Shape(Box::new([(0, 10), (100, 0)])));
        assert_eq!(scores(&with(shape), &cluster, asked()), Some(vec![75, 25]));
    }

    #[test]
    fn only_more_room_helps() {
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
