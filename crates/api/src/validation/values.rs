//! Comparison and traversal of values with the semantics of Kubernetes.

use machinery::Value;
use machinery::field::{FieldError, Path};

/// Message about a changed immutable field.
pub const IMMUTABLE: &str = "field is immutable";

/// Rejects a changed value. Absent and empty fields are equal.
pub fn unchanged(path: &Path<'_>, new: &Value, old: &Value) -> Option<FieldError> {
    (!same(new, old)).then(|| FieldError::invalid(path, new, IMMUTABLE))
}

/// Semantic equality: absent, `null`, empty maps and empty lists are equal, at any depth.
pub fn same(left: &Value, right: &Value) -> bool {
    alike(left, right, is_empty)
}

/// Same for structs: one without fields differs from an absent one.
pub fn same_structs(left: &Value, right: &Value) -> bool {
    alike(left, right, |value| !value.is_object() && is_empty(value))
}

fn alike(left: &Value, right: &Value, is_empty: fn(&Value) -> bool) -> bool {
    match (left, right) {
        (Value::Object(left_map), Value::Object(right_map)) => {
            let in_right = |key: &str| right_map.get(key).unwrap_or(&Value::Null);
            left_map.iter().all(|(key, value)| alike(value, in_right(key), is_empty))
                && right_map.iter().all(|(key, value)| left_map.contains_key(key) || is_empty(value))
        }
        (Value::Array(left_items), Value::Array(right_items)) => {
            left_items.len() == right_items.len()
                && left_items.iter().zip(right_items).all(|(left, right)| alike(left, right, is_empty))
        }
        _ => left == right || (is_empty(left) && is_empty(right)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The strings of a list.
pub fn strings(items: &[Value]) -> impl Iterator<Item = &str> {
    items.iter().map(|item| item.as_str().unwrap_or(""))
}

/// True if a list of strings contains this one.
pub fn contains(items: &[Value], text: &str) -> bool {
    strings(items).any(|item| item == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_and_empty_values_are_equal() {
        let cases = [
            (json!(null), json!({}), true),
            (json!({"a": null}), json!({}), true),
            (json!({"a": []}), json!({"b": {}}), true),
            (json!({"a": 1}), json!({}), false),
            (json!({}), json!({"a": "x"}), false),
            (json!([1, 2]), json!([2, 1]), false),
            (json!([{"a": null}]), json!([{}]), true),
            (json!(0), json!(null), false),
        ];
        for (left, right, expected) in cases {
            assert_eq!(same(&left, &right), expected, "{left} {right}");
            assert_eq!(same(&right, &left), expected, "{right} {left}");
        }
        assert!(same_structs(&json!({"a": []}), &json!({"a": null})));
        assert!(!same_structs(&json!({"a": {}}), &json!({})));
        assert!(!same_structs(&Value::Null, &json!({})));
    }
}
