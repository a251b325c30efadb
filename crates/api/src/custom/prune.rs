//! What a schema does not know is taken away.

use super::schema::{META_FIELDS, Schema};
use machinery::Value;

/// Takes away every field that the schema does not name. `is_resource`: the value has the fields of every resource,
/// which stay.
pub fn prune(value: &mut Value, schema: Option<Schema<'_>>, is_resource: bool) {
    let keeps = schema.is_some_and(Schema::preserves_unknown);
    let is_resource = is_resource || schema.is_some_and(Schema::is_embedded);
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                if is_resource && META_FIELDS.contains(&name.as_str()) {
                    return true;
                }
                let known = schema.and_then(|schema| schema.property(name));
                if let Some(of) = known {
                    prune(value, Some(of), false);
                    return true;
                }
                if schema.is_some_and(|schema| schema.additional().is_some()) {
                    prune(value, schema.and_then(Schema::additional_schema), false);
                    return true;
                }
                keeps
            });
        }
        Value::Array(items) => {
            let of = schema.and_then(Schema::items);
            // Where unknown fields are kept, so are those of items nobody describes.
            if of.is_some() || !keeps {
                items.iter_mut().for_each(|item| prune(item, of, false));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_known_stays() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"c": {}}}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"inner": {"type": "object"}}},
            "embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"d": {}}},
        }});
        let mut value = json!({
            "kind": "K", "x": 1, "a": "1", "list": [{"b": "1", "x": 1}], "map": {"k": {"c": 1, "x": 1}},
            "open": {"x": {"y": 1}, "inner": {"x": 1}}, "embedded": {"kind": "E", "d": 1, "x": 1},
        });
        prune(&mut value, Some(Schema(&schema)), true);
        let want = json!({
            "kind": "K", "a": "1", "list": [{"b": "1"}], "map": {"k": {"c": 1}},
            "open": {"x": {"y": 1}, "inner": {}}, "embedded": {"kind": "E", "d": 1},
        });
        assert_eq!(value, want);
        let mut value = json!({"kind": "K"});
        prune(&mut value, Some(Schema(&schema)), false);
        assert_eq!(value, json!({}));
    }
}
