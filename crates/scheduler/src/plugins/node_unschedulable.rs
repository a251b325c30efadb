//! NodeUnschedulable: cordoned nodes accept only pods that tolerate it.

use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Rejection};
use crate::state::{Cluster, Effect, NodeInfo, PodInfo, Taint, is_borne};

const REASON: &str = "node(s) were unschedulable";

pub struct NodeUnschedulable;

#[derive(Clone)]
struct NodeUnschedulableFilter;

fn tolerates(pod: &PodInfo) -> bool {
    is_borne(&pod.tolerations, &Taint::new("node.kubernetes.io/unschedulable", "", Effect::NoSchedule))
}

impl<'a> Filter<'a> for NodeUnschedulableFilter {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if node.unschedulable { Err(Rejection::unresolvable(REASON)) } else { Ok(()) }
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for NodeUnschedulable {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if tolerates(cycle.pod) {
            PreFilter::Skip
        } else {
            PreFilter::Check(Box::new(NodeUnschedulableFilter))
        }
    }

    fn interests(&self) -> Actions {
        Actions::NODE_ADD.or(Actions::NODE_TAINT).or(Actions::POD_TOLERATION)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::Node { old, new: Some(new) } => {
                !new.unschedulable && old.is_none_or(|old| old.unschedulable)
            }
            Changed::Pod { new: Some(new), .. } => new.uid == pod.uid && tolerates(new),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::reasons;
    use crate::testing::{cluster, node, pod};
    use serde_json::json;

    #[test]
    fn cordoned_node_accepts_only_tolerating_pods() {
        let cluster = cluster([node("open"), node("closed").spec(json!({"unschedulable": true}))], []);
        let all = json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]});
        assert_eq!(
            reasons(&NodeUnschedulable, &cluster, pod("p")),
            ["open: ", &format!("closed: !{REASON}")]
        );
        assert_eq!(reasons(&NodeUnschedulable, &cluster, pod("p").spec(all)), ["open: ", "closed: "]);
    }
}
