//! NodeAffinity: node selectors and node affinity, of the pod and, by configuration, of the profile.

use objects::core::v1::NodeAffinity as Affinity;

use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Rejection, normalize};
use crate::state::{Cluster, NodeInfo, NodeTerms, PodInfo, PreferredNodes, RequiredNodes};

const REASON_POD: &str = "node(s) didn't match Pod's node affinity/selector";
const REASON_PROFILE: &str = "node(s) didn't match scheduler-enforced node affinity";
const REASON_CONFLICT: &str = "pod affinity terms conflict";

#[derive(Default)]
pub struct NodeAffinity {
    added_required: Option<NodeTerms>,
    added_preferred: PreferredNodes,
}

impl NodeAffinity {
    /// Adds the affinity of the profile to that of every pod.
    #[must_use]
    pub fn new(added: Option<&Affinity>) -> Self {
        let required =
            added.and_then(|added| added.required_during_scheduling_ignored_during_execution.as_ref());
        let preferred =
            added.and_then(|added| added.preferred_during_scheduling_ignored_during_execution.as_ref());
        Self { added_required: required.map(NodeTerms::of), added_preferred: PreferredNodes::of(preferred) }
    }
}

#[derive(Clone)]
struct NodeAffinityFilter<'a> {
    profile: Option<&'a NodeTerms>,
    pod: &'a RequiredNodes,
}

impl<'a> Filter<'a> for NodeAffinityFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if self.profile.is_some_and(|terms| !terms.matches(&node.name, &node.labels)) {
            return Err(Rejection::unresolvable(REASON_PROFILE));
        }
        if !self.pod.matches(&node.name, &node.labels) {
            return Err(Rejection::unresolvable(REASON_POD));
        }
        Ok(())
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for NodeAffinity {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let required = &cycle.pod.required_nodes;
        if required.is_empty() && self.added_required.is_none() {
            return PreFilter::Skip;
        }
        let check = Box::new(NodeAffinityFilter { profile: self.added_required.as_ref(), pod: required });
        match required.terms.as_ref().and_then(NodeTerms::names) {
            None => PreFilter::Check(check),
            Some(names) if names.is_empty() => PreFilter::Reject(Rejection::unresolvable(REASON_CONFLICT)),
            Some(names) => PreFilter::Only(names.into_iter().map(str::to_owned).collect(), check),
        }
    }

    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        let preferred = &cycle.pod.preferred_nodes;
        if preferred.is_empty() && self.added_preferred.is_empty() {
            return false;
        }
        for (node, score) in nodes.iter().zip(scores.iter_mut()) {
            *score = self.added_preferred.score(&node.name, &node.labels)
                + preferred.score(&node.name, &node.labels);
        }
        normalize(scores, false);
        true
    }

    fn interests(&self) -> Actions {
        Actions::NODE_ADD.or(Actions::NODE_LABEL)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        let Changed::Node { old, new: Some(new) } = changed else { return true };
        if self.added_required.as_ref().is_some_and(|terms| !terms.matches(&new.name, &new.labels)) {
            return false;
        }
        let matches = |node: &NodeInfo| pod.required_nodes.matches(&node.name, &node.labels);
        matches(new) && !old.is_some_and(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::{reasons, scores};
    use crate::testing::{cluster, node, pod};
    use serde_json::json;

    #[test]
    fn node_affinity_of_pod_and_profile_filters_nodes() {
        let cluster = cluster([node("a").label("zone", "x"), node("b").label("zone", "y")], []);
        let selected = || pod("p").spec(json!({"nodeSelector": {"zone": "y"}}));
        let plain = NodeAffinity::default();
        assert_eq!(reasons(&plain, &cluster, selected()), [&format!("a: !{REASON_POD}"), "b: "]);
        let added = serde_json::from_value(json!({"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}]}}));
        let enforced = NodeAffinity::new(Some(&added.unwrap()));
        assert_eq!(
            reasons(&enforced, &cluster, selected()),
            [format!("a: !{REASON_POD}"), format!("b: !{REASON_PROFILE}")]
        );
        assert_eq!(reasons(&enforced, &cluster, pod("p")), ["a: ", &format!("b: !{REASON_PROFILE}")]);
    }

    #[test]
    fn node_names_without_intersection_are_rejected() {
        let cluster = cluster([node("a")], []);
        let named = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let both = pod("p")
            .spec(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchFields": [named("a"), named("b")]}]}}}}));
        assert_eq!(reasons(&NodeAffinity::default(), &cluster, both), [format!("!{REASON_CONFLICT}")]);
    }

    #[test]
    fn preferred_terms_are_scored_relative_to_highest() {
        let cluster = cluster([node("a").label("zone", "x"), node("b").label("disk", "ssd"), node("c")], []);
        let prefers = |key: &str, weight: i32| json!({"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}});
        let picky = pod("p")
            .spec(json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
            [prefers("zone", 4), prefers("disk", 2)]}}}));
        assert_eq!(scores(&NodeAffinity::default(), &cluster, picky), Some(vec![100, 50, 0]));
        assert_eq!(scores(&NodeAffinity::default(), &cluster, pod("p")), None);
    }
}
