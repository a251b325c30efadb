//! Text form of selectors, shared by the scalable kinds.

use crate::value::{Fields, texts};
use machinery::Value;

/// A label selector (`matchLabels`, `matchExpressions`) in the form of query parameters: `app=web,tier in (a,b)`.
pub fn selector_text(selector: &Value) -> String {
    let mut requirements: Vec<(&str, String)> = Vec::new();
    if let Some(labels) = selector.entries("matchLabels") {
        requirements.extend(labels.iter().map(|(key, value)| (key.as_str(), equality(key, value))));
    }
    for expression in selector.items("matchExpressions") {
        let key = expression.text("key");
        let mut values: Vec<&str> = texts(expression.items("values")).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match expression.text("operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        requirements.push((key, text));
    }
    requirements.sort_by(|a, b| a.0.cmp(b.0));
    join(requirements.into_iter().map(|(_, text)| text))
}

/// A plain map of labels as a selector text: `app=web,tier=db`.
pub fn labels_text(labels: &Value) -> String {
    let labels = labels.as_object();
    join(labels.into_iter().flatten().map(|(key, value)| equality(key, value)))
}

fn equality(key: &str, value: &Value) -> String {
    format!("{key}={}", value.as_str().unwrap_or(""))
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selector_converts_to_query_text() {
        let selector = json!({"matchLabels": {"b": "1"}, "matchExpressions": [
            {"key": "c", "operator": "NotIn", "values": ["z", "y"]},
            {"key": "a", "operator": "In", "values": ["x"]},
            {"key": "d", "operator": "Exists"},
            {"key": "e", "operator": "DoesNotExist"},
        ]});
        assert_eq!(selector_text(&selector), "a in (x),b=1,c notin (y,z),d,!e");
        assert_eq!(selector_text(&Value::Null), "");
        assert_eq!(labels_text(&json!({"b": "2", "a": "1"})), "a=1,b=2");
    }
}
