//! Label selectors inside objects.

use crate::value::Fields;
use machinery::Value;
use machinery::names;

pub use machinery::names::{validate_label_selector, validate_label_selector_requirement};

/// True if an expression of the selector has an invalid label value: an update may retain those of an old object.
pub fn has_invalid_label_value(selector: &Value) -> bool {
    let expressions = selector.items("matchExpressions").iter();
    let mut values = expressions.flat_map(|expression| expression.items("values")).filter_map(Value::as_str);
    values.any(|value| !names::label_value(value).is_empty())
}

/// True if the selector has no requirements and selects everything.
pub fn is_empty(selector: &Value) -> bool {
    selector.entries("matchLabels").is_none_or(|labels| labels.is_empty())
        && selector.items("matchExpressions").is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn empty_selector_and_invalid_values_are_detected() {
        let cases = [
            (json!({}), true, false),
            (json!({"matchLabels": {}}), true, false),
            (json!({"matchLabels": {"a": "b"}}), false, false),
            (json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}), false, false),
            (json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["-"]}]}), false, true),
        ];
        for (selector, empty, invalid) in cases {
            assert_eq!(
                (is_empty(&selector), has_invalid_label_value(&selector)),
                (empty, invalid),
                "{selector}"
            );
        }
    }
}
