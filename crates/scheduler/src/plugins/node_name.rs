//! NodeName: a pod with `spec.nodeName` fits no other node.

use crate::framework::{Actions, Cycle, Filter, Plugin, PreFilter, Rejection};
use crate::state::NodeInfo;

const REASON: &str = "node(s) didn't match the requested node name";

pub struct NodeName;

#[derive(Clone)]
struct NodeNameFilter<'a>(&'a str);

impl<'a> Filter<'a> for NodeNameFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if *node.name == *self.0 { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for NodeName {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        match cycle.pod.node_name() {
            Some(name) => PreFilter::Check(Box::new(NodeNameFilter(name))),
            None => PreFilter::Skip,
        }
    }

    fn interests(&self) -> Actions {
        Actions::NODE_ADD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::reasons;
    use crate::testing::{cluster, node, pod};

    #[test]
    fn node_name_rejects_other_nodes() {
        let cluster = cluster([node("a"), node("b")], []);
        assert_eq!(reasons(&NodeName, &cluster, pod("p").on("b")), [&format!("a: !{REASON}"), "b: "]);
        assert_eq!(reasons(&NodeName, &cluster, pod("p")), ["a: ", "b: "]);
    }
}
