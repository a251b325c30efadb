//! NodeResourcesBalancedAllocation: prefers nodes whose resources become more evenly used with the pod.

use crate::allocation::{WeightedResource, balance};
use crate::framework::{Cycle, Plugin};
use crate::state::NodeInfo;

pub struct NodeResourcesBalancedAllocation {
    pub resources: Box<[WeightedResource]>,
}

impl Default for NodeResourcesBalancedAllocation {
    fn default() -> Self {
        Self { resources: WeightedResource::defaults() }
    }
}

impl Plugin for NodeResourcesBalancedAllocation {
    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        // A pod without requests changes nothing.
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
    fn balanced_allocation_prefers_even_use() {
        let size = || json!({"cpu": "10", "memory": "20000", "pods": "110"});
        let cluster = cluster(
            [node("even").allocatable(size()), node("cpu-heavy").allocatable(size())],
            [pod("1").cpu("6").on("cpu-heavy")],
        );
        let plugin = NodeResourcesBalancedAllocation::default();
        // On the empty node it uses 0 % and 50 %: less even than before. On the other node it evens out the use.
        assert_eq!(scores(&plugin, &cluster, pod("p").request("memory", "10000")), Some(vec![62, 87]));
        assert_eq!(scores(&plugin, &cluster, pod("p")), None);
    }
}
