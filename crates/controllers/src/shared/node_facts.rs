//! Node predicates shared by the loops: conditions, taints, and whether a pod may run there by the scheduler's rules.

use objects::core::v1::{
    Affinity, Node, NodeCondition, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

#[must_use]
pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

#[must_use]
pub fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|condition| condition.status == "True")
}

#[must_use]
pub fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

#[must_use]
pub fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// True if this toleration tolerates the taint. Without a key it applies to every taint.
#[must_use]
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &'_ Option<String>| value.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => text(&toleration.value) == text(&taint.value),
        // Numeric comparisons are an alpha feature.
        Some(_) => false,
    }
}

/// First untolerated taint with one of these effects.
#[must_use]
pub fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
    effects: &[&str],
) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// True if the node matches the pod's node selector and required node affinity.
#[must_use]
pub fn matches_selection(spec: &PodSpec, node: &Node) -> bool {
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| label(key) == Some(value));
    selected
        && required_terms(spec.affinity.as_ref())
            .is_none_or(|terms| terms.iter().any(|term| meets(term, node)))
}

fn required_terms(affinity: Option<&Affinity>) -> Option<&[NodeSelectorTerm]> {
    let required =
        affinity?.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()?;
    Some(&required.node_selector_terms)
}

/// Matches one term of a node selector; an empty term matches no node.
#[must_use]
pub fn meets(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label =
        |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then(|| name(node));
    expressions.iter().all(|requirement| holds(requirement, label(&requirement.key)))
        && fields.iter().all(|requirement| field_holds(requirement, field(&requirement.key)))
}

/// Matches a label; an invalid requirement matches no node.
fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|known| known == value));
    let numbers = || match values {
        [bound] => Some((value?.parse::<i64>().ok()?, bound.parse::<i64>().ok()?)),
        _ => None,
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !values.is_empty() && !listed,
        "Exists" => values.is_empty() && value.is_some(),
        "DoesNotExist" => values.is_empty() && value.is_none(),
        "Gt" => numbers().is_some_and(|(have, bound)| have > bound),
        "Lt" => numbers().is_some_and(|(have, bound)| have < bound),
        _ => false,
    }
}

/// Matches a field, which can only be compared with one value.
fn field_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let comparable = matches!(requirement.operator.as_str(), "In" | "NotIn");
    let single = requirement.values.as_ref().is_some_and(|values| values.len() == 1);
    comparable && single && holds(requirement, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::meta::v1::ObjectMeta;

    #[test]
    fn tolerations_match_vectors() {
        for vector in vectors::tolerations() {
            let toleration = serde_json::from_value(vector.toleration).expect("a toleration");
            let taint = serde_json::from_value(vector.taint).expect("a taint");
            assert_eq!(tolerates(&toleration, &taint), vector.tolerated, "{}", vector.name);
        }
    }

    #[test]
    fn only_taints_with_listed_effects_count() {
        let taint =
            Taint { key: "k".into(), value: Some("v".into()), effect: "NoExecute".into(), time_added: None };
        let taints = [taint];
        assert!(untolerated(&taints, &[], &["NoSchedule"]).is_none());
        assert!(untolerated(&taints, &[], &["NoExecute"]).is_some());
    }

    #[test]
    fn node_selection_matches_vectors() {
        let node = Node {
            metadata: ObjectMeta {
                name: Some(vectors::NODE_NAME.into()),
                labels: Some(vectors::node_labels()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        for vector in vectors::node_affinities() {
            let spec = serde_json::from_value(vector.spec).expect("a spec");
            assert_eq!(matches_selection(&spec, &node), vector.matches, "{}", vector.name);
        }
    }
}
