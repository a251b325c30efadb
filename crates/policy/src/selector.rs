//! Label selectors in a form that can be compared: equal selectors share one set in the kernel.

use objects::meta::v1::LabelSelector;

use crate::model::Labels;

/// All requirements hold; without any, everything matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Requirement {
    /// The label has one of these values.
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    /// An operator nobody knows.
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
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::Missing(key),
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
    fn requirements() {
        let labels: Labels = [("app".to_owned(), "web".to_owned())].into();
        let one = |operator: &str, values: &[&str]| {
            selector(
                json!({ "matchExpressions": [{ "key": "app", "operator": operator, "values": values }] }),
            )
        };
        for (selector, expected) in [
            (selector(json!({})), true),
            (selector(json!({ "matchLabels": { "app": "web" } })), true),
            (selector(json!({ "matchLabels": { "app": "db" } })), false),
            (one("In", &["db", "web"]), true),
            (one("In", &[]), false),
            (one("NotIn", &["db"]), true),
            (one("NotIn", &["web"]), false),
            (one("Exists", &[]), true),
            (one("DoesNotExist", &[]), false),
            (one("Resembles", &["web"]), false),
        ] {
            assert_eq!(selector.matches(&labels), expected, "{selector:?}");
        }
        assert!(one("NotIn", &["web"]).matches(&Labels::new()));
    }

    #[test]
    fn equal_in_whatever_order() {
        let one = json!({ "matchExpressions": [
            { "key": "a", "operator": "In", "values": ["2", "1", "1"] }, { "key": "b", "operator": "Exists" },
        ] });
        let other = json!({ "matchExpressions": [
            { "key": "b", "operator": "Exists" }, { "key": "a", "operator": "In", "values": ["1", "2"] },
        ] });
        assert_eq!(selector(one), selector(other));
    }
}
