//! TaintToleration: untolerated taints reject pods or lower the score of a node.

use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Rejection, normalize};
use crate::state::{Cluster, Effect, NodeInfo, PodInfo, Toleration, forbid};

const REASON: &str = "node(s) had untolerated taint(s)";

pub struct TaintToleration;

#[derive(Clone)]
struct TaintTolerationFilter<'a>(&'a [Toleration]);

impl<'a> Filter<'a> for TaintTolerationFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if forbid(&node.taints, self.0) { Err(Rejection::unresolvable(REASON)) } else { Ok(()) }
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for TaintToleration {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        PreFilter::Check(Box::new(TaintTolerationFilter(&cycle.pod.tolerations)))
    }

    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        let soft = |toleration: &&Toleration| {
            toleration.effect.is_none_or(|effect| effect == Effect::PreferNoSchedule)
        };
        let tolerations: Vec<&Toleration> = cycle.pod.tolerations.iter().filter(soft).collect();
        for (node, score) in nodes.iter().zip(scores.iter_mut()) {
            let unwelcome = node.taints.iter().filter(|taint| {
                taint.effect == Effect::PreferNoSchedule
                    && !tolerations.iter().any(|toleration| toleration.bears(taint))
            });
            *score = i64::try_from(unwelcome.count()).unwrap_or(i64::MAX);
        }
        normalize(scores, true);
        true
    }

    fn interests(&self) -> Actions {
        Actions::NODE_ADD.or(Actions::NODE_TAINT).or(Actions::POD_TOLERATION)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::Node { old, new: Some(new) } => {
                old.is_none_or(|old| forbid(&old.taints, &pod.tolerations))
                    && !forbid(&new.taints, &pod.tolerations)
            }
            Changed::Pod { new: Some(new), .. } => new.uid == pod.uid,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::{reasons, scores};
    use crate::testing::{cluster, node, pod};
    use serde_json::json;

    #[test]
    fn untolerated_taint_rejects_node() {
        let cluster = cluster(
            [node("clean"), node("no").taint("a", "NoSchedule"), node("soft").taint("a", "PreferNoSchedule")],
            [],
        );
        assert_eq!(
            reasons(&TaintToleration, &cluster, pod("p")),
            ["clean: ", &format!("no: !{REASON}"), "soft: "]
        );
        let tolerant = || pod("p").spec(json!({"tolerations": [{"key": "a", "operator": "Exists"}]}));
        assert_eq!(reasons(&TaintToleration, &cluster, tolerant()), ["clean: ", "no: ", "soft: "]);
        assert_eq!(scores(&TaintToleration, &cluster, pod("p")), Some(vec![100, 100, 0]));
        assert_eq!(scores(&TaintToleration, &cluster, tolerant()), Some(vec![100, 100, 100]));
        let other_effect =
            json!({"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]});
        assert_eq!(scores(&TaintToleration, &cluster, pod("p").spec(other_effect)), Some(vec![100, 100, 0]));
    }
}
