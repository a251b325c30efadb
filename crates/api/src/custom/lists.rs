//! Uniqueness in lists of type set and map.

use super::node::Node;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::schema::ListType;
use machinery::{Map, Value};
use std::collections::HashMap;

/// Errors of the lists of type set and map in a value.
pub fn check(value: &Value, node: &Node, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    walk(value, node, path, &mut errors);
    errors
}

fn walk(value: &Value, node: &Node, path: &Path<'_>, errors: &mut ErrorList) {
    if !node.below.keyed_lists {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (node.property(name), &node.additional) {
                    (Some(of), _) => walk(value, of, &path.child(name), errors),
                    (None, Some(of)) => walk(value, of, &path.key(name), errors),
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            match node.list_type {
                ListType::Atomic => {}
                ListType::Set => {
                    for index in repeated(items) {
                        errors.push(FieldError::duplicate(&path.index(index), &items[index]));
                    }
                }
                ListType::Map => map(items, node, path, errors),
            }
            if let Some(of) = &node.items {
                for (index, item) in items.iter().enumerate() {
                    walk(item, of, &path.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

/// Indexes of the second appearance of every value that appears more than once.
fn repeated(values: &[Value]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(values.len());
    let mut repeated = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            repeated.push(index);
        }
    }
    repeated
}

fn map(items: &[Value], node: &Node, path: &Path<'_>, errors: &mut ErrorList) {
    let is_odd = |item: &&Value| !item.is_null() && !item.is_object();
    if let Some(index) = items.iter().position(|item| is_odd(&item)) {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(&path.index(index), &items[index], detail));
        return;
    }
    let keys: Vec<Value> = items
        .iter()
        .map(|item| {
            let names = node.map_keys().iter();
            let key = names.filter_map(|name| Some((name.to_string(), item.get(name.as_ref())?.clone())));
            Value::Object(key.collect::<Map<_, _>>())
        })
        .collect();
    for index in repeated(&keys) {
        errors.push(FieldError::duplicate(&path.index(index), &keys[index]));
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::super::schema::Schema;
    use super::*;
    use serde_json::json;

    #[test]
    fn duplicates_are_reported_once() {
        let item =
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
        let list = |list_type: &str, keys: Value, items: &Value| {
            json!({"type": "array", "x-kubernetes-list-type": list_type, "x-kubernetes-list-map-keys": keys,
                "items": items})
        };
        let text = json!({"type": "string"});
        let schema = json!({"type": "object", "properties": {
            "set": list("set", json!([]), &text),
            "map": list("map", json!(["a"]), &item),
            "map2": list("map", json!(["a", "b"]), &item),
            "nested": {"type": "object", "additionalProperties": list("set", json!([]), &text)},
            "atomic": {"type": "array", "items": text},
        }});
        let node = compile::schema(Schema(&schema), true);
        for (value, want) in [
            (json!({"set": ["a", "b"], "atomic": ["a", "a"]}), vec![]),
            (
                json!({"set": ["a", "b", "a", "b", "a"]}),
                vec![r#"set[2]: Duplicate value: "a""#, r#"set[3]: Duplicate value: "b""#],
            ),
            (
                json!({"set": [1, 1, null, null]}),
                vec!["set[1]: Duplicate value: 1", "set[3]: Duplicate value: null"],
            ),
            (
                json!({"map": [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"b": 1}, null]}),
                vec![r#"map[1]: Duplicate value: {"a":1}"#, "map[3]: Duplicate value: {}"],
            ),
            (
                json!({"map": [{"a": 1}, "x"]}),
                vec![r#"map[1]: Invalid value: "x": must be an object for an array of list-type map"#],
            ),
            (
                json!({"map2": [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"b": 1, "a": 1}, {"a": 1}, {"a": 1}]}),
                vec![r#"map2[2]: Duplicate value: {"a":1,"b":1}"#, r#"map2[4]: Duplicate value: {"a":1}"#],
            ),
            (json!({"nested": {"k": ["x", "x"]}}), vec![r#"nested[k][1]: Duplicate value: "x""#]),
        ] {
            let errors = check(&value, &node, &Path::ROOT);
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts, want, "{value}");
        }
    }
}
