//! Three-way patches: changes from the live object to the manifest, and removals since the last applied manifest.

use serde_json::{Map, Value, json};

use crate::openapi::Node;

/// Patch that sets the fields of `modified` in `current` and removes fields that only `original` has. With a schema
/// it is a strategic merge patch, without one a merge patch.
pub fn three_way(original: &Value, modified: &Value, current: &Value, schema: Option<Node<'_>>) -> Value {
    let map = |value: &'_ Value| value.as_object().cloned().unwrap_or_default();
    let (original, modified, current) = (map(original), map(modified), map(current));
    Value::Object(diff(&original, &modified, &current, schema))
}

fn diff(
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    current: &Map<String, Value>,
    schema: Option<Node<'_>>,
) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, want) in modified {
        let have = current.get(key);
        let member = schema.and_then(|schema| schema.member(key));
        match (want, have) {
            (Value::Object(want), Some(Value::Object(have)))
                if !member.is_some_and(|member| member.has_strategy("replace")) =>
            {
                let before = original.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
                let mut changes = diff(&before, want, have, member);
                if !changes.is_empty() {
                    if member.is_some_and(|member| member.has_strategy("retainKeys")) {
                        changes.insert("$retainKeys".to_owned(), json!(want.keys().collect::<Vec<_>>()));
                    }
                    patch.insert(key.clone(), Value::Object(changes));
                }
            }
            (Value::Array(want), Some(Value::Array(have)))
                if member.is_some_and(|member| member.has_strategy("merge")) =>
            {
                let before = original.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
                if let Some(member) = member {
                    list(key, &before, want, have, member, &mut patch);
                }
            }
            (Value::Null, None) => {}
            (want, Some(have)) if want == have => {}
            (want, _) => {
                patch.insert(key.clone(), want.clone());
            }
        }
    }
    for key in original.keys() {
        if !modified.contains_key(key) && current.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch
}

/// Adds the changes of a list of primitives that merges.
fn set(key: &str, original: &[Value], modified: &[Value], current: &[Value], patch: &mut Map<String, Value>) {
    let added: Vec<&Value> = modified.iter().filter(|item| !current.contains(item)).collect();
    let removed: Vec<&Value> =
        original.iter().filter(|item| !modified.contains(item) && current.contains(item)).collect();
    if added.is_empty() && removed.is_empty() {
        return;
    }
    if !added.is_empty() {
        patch.insert(key.to_owned(), json!(added));
    }
    if !removed.is_empty() {
        patch.insert(format!("$deleteFromPrimitiveList/{key}"), json!(removed));
    }
    patch.insert(format!("$setElementOrder/{key}"), json!(modified));
}

/// Adds the changes of a list that merges.
fn list(
    key: &str,
    original: &[Value],
    modified: &[Value],
    current: &[Value],
    schema: Node<'_>,
    patch: &mut Map<String, Value>,
) {
    let merge_key = schema.merge_key();
    let order_key = format!("$setElementOrder/{key}");
    if merge_key.is_empty() {
        return set(key, original, modified, current, patch);
    }
    if modified.iter().any(|item| item.get(merge_key).is_none()) {
        let mut items = vec![json!({"$patch": "replace"})];
        items.extend(modified.iter().cloned());
        patch.insert(key.to_owned(), Value::Array(items));
        return;
    }
    let find =
        |items: &'_ [Value], id: &Value| items.iter().find(|item| item.get(merge_key) == Some(id)).cloned();
    let mut changes = Vec::new();
    for item in modified {
        let id = &item[merge_key];
        let Some(have) = find(current, id) else {
            changes.push(item.clone());
            continue;
        };
        let map = |value: Option<Value>| match value {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        let mut change =
            diff(&map(find(original, id)), &map(Some(item.clone())), &map(Some(have)), schema.items());
        if !change.is_empty() {
            if schema.has_strategy("retainKeys") {
                change.insert(
                    "$retainKeys".to_owned(),
                    json!(map(Some(item.clone())).keys().collect::<Vec<_>>()),
                );
            }
            change.insert(merge_key.to_owned(), id.clone());
            changes.push(Value::Object(change));
        }
    }
    for item in original {
        let Some(id) = item.get(merge_key) else { continue };
        if find(modified, id).is_none() && find(current, id).is_some() {
            let mut removal = Map::from_iter([("$patch".to_owned(), json!("delete"))]);
            removal.insert(merge_key.to_owned(), id.clone());
            changes.push(Value::Object(removal));
        }
    }
    let ids = |items: &[Value], others: &[Value]| -> Vec<Value> {
        let ids = items.iter().filter_map(|item| item.get(merge_key)).filter(|id| find(others, id).is_some());
        ids.cloned().collect()
    };
    let reordered = ids(modified, current) != ids(current, modified);
    if changes.is_empty() && !reordered {
        return;
    }
    let order: Vec<Value> = modified
        .iter()
        .map(|item| Value::Object(Map::from_iter([(merge_key.to_owned(), item[merge_key].clone())])))
        .collect();
    patch.insert(order_key, Value::Array(order));
    if !changes.is_empty() {
        patch.insert(key.to_owned(), Value::Array(changes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::Schemas;

    fn schemas() -> Schemas {
        Schemas::new(json!({"components": {"schemas": {
            "K": {"x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "K"}], "properties": {
                "list": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
                    "items": {"allOf": [{"$ref": "#/components/schemas/Item"}]}},
                "words": {"type": "array", "x-kubernetes-patch-strategy": "merge"},
                "strategy": {"x-kubernetes-patch-strategy": "retainKeys"},
                "plain": {"type": "array"}}},
            "Item": {"properties": {"name": {}, "args": {"type": "array"}}}}}}))
    }

    fn patch(original: Value, modified: Value, current: Value) -> Value {
        let schemas = schemas();
        let node = schemas.kind("", "v1", "K").expect("a schema");
        three_way(&original, &modified, &current, Some(node))
    }

    #[test]
    fn lists_with_a_merge_key_merge_by_it() {
        let current = json!({"list": [{"name": "a", "args": ["1"], "defaulted": true}, {"name": "b"}, {"name": "added-by-others"}]});
        let original = json!({"list": [{"name": "a", "args": ["1"]}, {"name": "b"}]});
        assert_eq!(patch(original.clone(), original.clone(), current.clone()), json!({}));
        let modified = json!({"list": [{"name": "a", "args": ["2"]}, {"name": "c"}]});
        let want = json!({"$setElementOrder/list": [{"name": "a"}, {"name": "c"}],
            "list": [{"name": "a", "args": ["2"]}, {"name": "c"}, {"name": "b", "$patch": "delete"}]});
        assert_eq!(patch(original.clone(), modified, current.clone()), want);
        let reordered = json!({"list": [{"name": "b"}, {"name": "a", "args": ["1"]}]});
        assert_eq!(
            patch(original, reordered, current),
            json!({"$setElementOrder/list": [{"name": "b"}, {"name": "a"}]})
        );
    }

    #[test]
    fn primitive_list_and_retained_keys_are_patched() {
        let want = json!({"words": ["c"], "$deleteFromPrimitiveList/words": ["b"], "$setElementOrder/words": ["a", "c"]});
        assert_eq!(
            patch(json!({"words": ["a", "b"]}), json!({"words": ["a", "c"]}), json!({"words": ["a", "b"]})),
            want
        );
        assert_eq!(patch(json!({}), json!({"plain": [1]}), json!({"plain": [2]})), json!({"plain": [1]}));
        let want = json!({"strategy": {"type": "Recreate", "$retainKeys": ["type"]}});
        assert_eq!(
            patch(
                json!({}),
                json!({"strategy": {"type": "Recreate"}}),
                json!({"strategy": {"type": "Rolling", "rolling": {}}})
            ),
            want
        );
        assert_eq!(
            patch(
                json!({"gone": 1, "x": {"y": 1}}),
                json!({"x": {}}),
                json!({"gone": 1, "x": {"y": 1, "z": 2}})
            ),
            json!({"gone": null, "x": {"y": null}})
        );
    }

    #[test]
    fn without_a_schema_lists_are_replaced() {
        let (original, modified) = (json!({"a": {"b": 1}}), json!({"a": {}, "l": [1]}));
        assert_eq!(
            three_way(&original, &modified, &json!({"a": {"b": 1}, "l": [2]}), None),
            json!({"a": {"b": null}, "l": [1]})
        );
    }
}
