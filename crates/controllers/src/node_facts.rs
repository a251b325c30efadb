//! What loops ask of a node: its conditions and taints, and whether a pod may run there, as the scheduler would say.

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

/// The taint is tolerated by this toleration.
#[must_use]
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let set = |value: &Option<String>| value.as_deref().filter(|value| !value.is_empty()).map(str::to_owned);
    if set(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    let key = set(&toleration.key);
    if key.as_ref().is_some_and(|key| *key != taint.key) {
        return false;
    }
    let (wanted, given) =
        (set(&toleration.value).unwrap_or_default(), taint.value.clone().unwrap_or_default());
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => key.is_some() && wanted == given,
        Some(operator @ ("Lt" | "Gt")) => {
            let (Ok(wanted), Ok(given)) = (wanted.parse::<i64>(), given.parse::<i64>()) else { return false };
            if operator == "Lt" { given < wanted } else { given > wanted }
        }
        Some(_) => false,
    }
}

/// The first taint with one of these effects that no toleration covers.
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

/// The node has the labels the pod selects, and meets its required affinity.
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

/// One term of a node selector; one that asks for nothing matches no node.
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
        && fields.iter().all(|requirement| holds(requirement, field(&requirement.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|known| known == value));
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(have, bound)| have > bound),
        "Lt" => numbers().is_some_and(|(have, bound)| have < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::meta::v1::ObjectMeta;

    #[test]
    fn tolerations_cover_taints() {
        let taint =
            Taint { key: "k".into(), value: Some("v".into()), effect: "NoExecute".into(), time_added: None };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
            key: Some(key.into()),
            operator: Some(operator.into()),
            value: Some(value.into()),
            effect: Some(effect.into()),
            toleration_seconds: None,
        };
        for (toleration, expected) in [
            (toleration("k", "Equal", "v", "NoExecute"), true),
            (toleration("k", "", "v", ""), true),
            (toleration("k", "Equal", "w", ""), false),
            (toleration("", "Exists", "", ""), true),
            (toleration("", "Equal", "v", ""), false),
            (toleration("k", "Exists", "", "NoSchedule"), false),
        ] {
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?}");
        }
        let taints = [taint];
        assert!(untolerated(&taints, &[], &["NoSchedule"]).is_none());
        assert!(untolerated(&taints, &[], &["NoExecute"]).is_some());
    }

    #[test]
    fn terms_are_alternatives_and_requirements_add_up() {
        let node = Node {
            metadata: ObjectMeta {
                name: Some("n1".into()),
                labels: Some(
                    [("zone".to_owned(), "a".to_owned()), ("cpus".to_owned(), "8".to_owned())].into(),
                ),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        let asks = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(ToString::to_string).collect()),
        };
        let term = |expressions: Vec<_>, fields: Vec<_>| NodeSelectorTerm {
            match_expressions: Some(expressions),
            match_fields: Some(fields),
        };
        assert!(meets(&term(vec![asks("zone", "In", &["a"]), asks("cpus", "Gt", &["4"])], vec![]), &node));
        assert!(!meets(&term(vec![asks("zone", "In", &["a"]), asks("cpus", "Lt", &["4"])], vec![]), &node));
        assert!(meets(&term(vec![], vec![asks("metadata.name", "In", &["n1"])]), &node));
        assert!(!meets(&term(vec![], vec![]), &node));
    }
}
