//! Label selectors of typed objects.

use std::collections::BTreeMap;

use objects::meta::v1::LabelSelector;

/// Whether the labels match. A selector without any requirement matches everything; one with an operator nobody knows
/// matches nothing.
#[must_use]
pub fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            let value = get(&requirement.key);
            let listed =
                || value.is_some_and(|value| requirement.values.iter().flatten().any(|known| known == value));
            match requirement.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// A selector that asks for nothing.
#[must_use]
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// Whether the labels hold all pairs of a plain selector, as replication controllers and services have it.
#[must_use]
pub fn holds(pairs: &BTreeMap<String, String>, labels: Option<&BTreeMap<String, String>>) -> bool {
    pairs.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::meta::v1::LabelSelectorRequirement;

    #[test]
    fn requirements_are_all_met_or_not() {
        let labels: BTreeMap<_, _> = [("a".to_owned(), "1".to_owned())].into();
        let asks = |key: &str, operator: &str, values: &[&str]| {
            let selector = LabelSelector {
                match_expressions: Some(vec![LabelSelectorRequirement {
                    key: key.into(),
                    operator: operator.into(),
                    values: Some(values.iter().map(ToString::to_string).collect()),
                }]),
                ..Default::default()
            };
            matches(&selector, Some(&labels))
        };
        assert!(asks("a", "In", &["1", "2"]) && !asks("a", "In", &["2"]) && !asks("b", "In", &["1"]));
        assert!(asks("b", "NotIn", &["1"]) && !asks("a", "NotIn", &["1"]));
        assert!(asks("a", "Exists", &[]) && asks("b", "DoesNotExist", &[]) && !asks("a", "Like", &["1"]));
        let none = LabelSelector::default();
        assert!(is_empty(&none) && matches(&none, None));
        assert!(holds(&labels, Some(&labels)) && !holds(&labels, None) && holds(&BTreeMap::new(), None));
    }
}
