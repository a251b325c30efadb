//! Label selectors of typed objects.

use std::collections::BTreeMap;

use objects::meta::v1::LabelSelector;

/// True if the labels match. A selector without requirements matches everything; an invalid one matches nothing.
#[must_use]
pub fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            let value = get(&requirement.key);
            let values = requirement.values.as_deref().unwrap_or_default();
            let listed = || value.is_some_and(|value| values.contains(value));
            match requirement.operator.as_str() {
                "In" => listed(),
                "NotIn" => !values.is_empty() && !listed(),
                "Exists" => values.is_empty() && value.is_some(),
                "DoesNotExist" => values.is_empty() && value.is_none(),
                _ => false,
            }
        })
}

/// True for a selector without requirements.
#[must_use]
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// True if the labels contain all pairs of an equality selector, as in replication controllers and services.
#[must_use]
pub fn holds(pairs: &BTreeMap<String, String>, labels: Option<&BTreeMap<String, String>>) -> bool {
    pairs.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match_vectors() {
        for vector in vectors::selectors() {
            let selector: Option<LabelSelector> =
                serde_json::from_value(vector.selector).expect("a selector");
            // Callers skip objects without a selector.
            let matches = selector.is_some_and(|selector| matches(&selector, Some(&vector.labels)));
            assert_eq!(matches, vector.matches, "{}", vector.name);
        }
    }

    #[test]
    fn selector_without_requirements_matches_everything() {
        let labels: BTreeMap<_, _> = [("a".to_owned(), "1".to_owned())].into();
        let none = LabelSelector::default();
        assert!(is_empty(&none) && matches(&none, None));
        assert!(holds(&labels, Some(&labels)) && !holds(&labels, None) && holds(&BTreeMap::new(), None));
    }
}
