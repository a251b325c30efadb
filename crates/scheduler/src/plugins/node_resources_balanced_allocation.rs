//! NodeResourcesBalancedAllocation: nodes whose resources a pod would bring closer to equal use are better.

use crate::allocation::{Weighed, balance};
use crate::framework::{Cycle, Plugin};
use crate::state::NodeInfo;

pub struct NodeResourcesBalancedAllocation {
    pub resources: Box<[Weighed]>,
}

impl Default for NodeResourcesBalancedAllocation {
    fn default() -> Self {
        Self { resources: Weighed::defaults() }
    }
}

impl Plugin for NodeResourcesBalancedAllocation {
    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        // A pod that asks for nothing changes nothing.
        if self.resources.iter().all(|resource| cycle.pod.requests.exact.get(&resource.name) == 0) {
            return false;
        }
        balance(&self.resources, cycle.pod, nodes, scores);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::scores;
    use crate::testing::{cluster, node, pod};
    use serde_json::json;

    #[test]
    fn evenly_used_nodes_are_better() {
        let size = || json!({"cpu": "10", "memory": "20000", "pods": "110"});
        let cluster = cluster(
            [node("even").allocatable(size()), node("cpu-heavy").allocatable(size())],
            [pod("1").cpu("6").on("cpu-heavy")],
        );
        let plugin = NodeResourcesBalancedAllocation::default();
        // Alone it would use 0 % and 50 %: less even than before. On the other node it evens things out.
        assert_eq!(scores(&plugin, &cluster, pod("p").request("memory", "10000")), Some(vec![62, 87]));
        assert_eq!(scores(&plugin, &cluster, pod("p")), None);
    }
}
