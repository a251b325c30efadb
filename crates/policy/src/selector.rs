//! Label selectors in canonical form: equal selectors share one set in the kernel.

use objects::meta::v1::LabelSelector;

use crate::model::Labels;

/// All requirements must match; an empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Requirement {
    /// The label has one of these values.
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    /// An unknown operator, or values that do not fit the operator.
    Never,
}

impl Selector {
    #[must_use]
    pub fn new(selector: &LabelSelector) -> Self {
        let equal = selector.match_labels.iter().flatten();
        let mut all: Vec<Requirement> =
            equal.map(|(key, value)| Requirement::In(key.clone(), vec![value.clone()])).collect();
        for expression in selector.match_expressions.iter().flatten() {
            let key = expression.key.clone();
            let mut values = expression.values.clone().unwrap_or_default();
            values.sort_unstable();
            values.dedup();
            all.push(match expression.operator.as_str() {
                "In" if !values.is_empty() => Requirement::In(key, values),
                "NotIn" if !values.is_empty() => Requirement::NotIn(key, values),
                "Exists" if values.is_empty() => Requirement::Exists(key),
                "DoesNotExist" if values.is_empty() => Requirement::Missing(key),
                _ => Requirement::Never,
            });
        }
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Missing(key) => !labels.contains_key(key),
            Requirement::Never => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn selector(value: Value) -> Selector {
        Selector::new(&serde_json::from_value(value).expect("a selector"))
    }

    #[test]
    fn selectors_match_vectors() {
        for vector in vectors::selectors() {
            let parsed: Option<LabelSelector> = serde_json::from_value(vector.selector).expect("a selector");
            // A peer without a selector has no such selector.
            let matches = parsed.is_some_and(|selector| Selector::new(&selector).matches(&vector.labels));
            assert_eq!(matches, vector.matches, "{}", vector.name);
        }
    }

    #[test]
    fn equality_ignores_the_order() {
        let one = json!({ "matchExpressions": [
            { "key": "a", "operator": "In", "values": ["2", "1", "1"] }, { "key": "b", "operator": "Exists" },
        ] });
        let other = json!({ "matchExpressions": [
            { "key": "b", "operator": "Exists" }, { "key": "a", "operator": "In", "values": ["1", "2"] },
        ] });
        assert_eq!(selector(one), selector(other));
    }
}
