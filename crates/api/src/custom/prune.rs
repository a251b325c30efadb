//! Removal of fields that a schema does not describe, and of nulls that it does not allow.

use super::node::Node;
use super::schema::META_FIELDS;
use machinery::{Map, Value};

/// Removes every field that the schema does not describe, and returns their paths, sorted. `is_resource`: the value
/// has the fields of every resource, which are retained.
pub fn prune(value: &mut Value, node: &Node, is_resource: bool) -> Vec<String> {
    let mut pruning = Pruning::default();
    pruning.walk(value, Some(node), is_resource);
    pruning.dropped.sort();
    pruning.dropped
}

/// Maximum number of recorded paths.
const MAX_PATHS: usize = 1000;

#[derive(Default)]
struct Pruning {
    path: String,
    dropped: Vec<String>,
}

impl Pruning {
    fn walk(&mut self, value: &mut Value, node: Option<&Node>, is_resource: bool) {
        let is_resource = is_resource || node.is_some_and(|node| node.embedded);
        let keeps = node.is_some_and(|node| node.preserve_unknown);
        match value {
            Value::Object(fields) => self.fields(fields, node, is_resource, keeps),
            Value::Array(items) => {
                let of = node.and_then(|node| node.items.as_deref());
                // If unknown fields are preserved, items without a schema retain theirs.
                if of.is_none() && keeps {
                    return;
                }
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    if keeps {
                        self.preserving_item(item, of)
                    } else {
                        self.walk(item, of, false)
                    }
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// An item of a list that preserves unknown fields: it retains its own, too.
    fn preserving_item(&mut self, item: &mut Value, node: Option<&Node>) {
        let is_resource = node.is_some_and(|node| node.embedded);
        match item {
            Value::Object(fields) => self.fields(fields, node, is_resource, true),
            Value::Array(items) => {
                let of = node.and_then(|node| node.items.as_deref());
                for (index, item) in items.iter_mut().enumerate().filter(|_| of.is_some()) {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    self.preserving_item(item, of);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn fields(
        &mut self,
        fields: &mut Map<String, Value>,
        node: Option<&Node>,
        is_resource: bool,
        keeps: bool,
    ) {
        fields.retain(|name, value| {
            let is_meta = META_FIELDS.contains(&name.as_str());
            if is_resource && is_meta {
                return true;
            }
            let has_additional =
                node.is_some_and(|node| node.additional_properties != super::node::Additional::Unset);
            let known = node.and_then(|node| node.property(name));
            if known.is_none() && !has_additional {
                // At the root, unknown fields are reported by the decoder.
                let is_reported = is_meta && self.path.is_empty();
                if !keeps && !is_reported {
                    self.record(name);
                }
                return keeps;
            }
            let of = known.or_else(|| node.and_then(|node| node.additional.as_ref()));
            let length = self.path.len();
            self.push(name);
            self.walk(value, of.map(|of| &**of), false);
            self.path.truncate(length);
            true
        });
    }

    fn push(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn record(&mut self, name: &str) {
        if self.dropped.len() < MAX_PATHS {
            let length = self.path.len();
            self.push(name);
            self.dropped.push(self.path.clone());
            self.path.truncate(length);
        }
    }
}

/// Removes null fields that are neither nullable nor have a default. Those with a default are left for defaulting.
pub fn prune_nulls(value: &mut Value, node: &Node) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(of) = node.member(name) else { return true };
            if value.is_null() {
                return of.nullable || of.default.is_some();
            }
            prune_nulls(value, of);
            true
        }),
        Value::Array(items) => {
            if let Some(of) = &node.items {
                items.iter_mut().for_each(|item| prune_nulls(item, of));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::super::schema::Schema;
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "a": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"c": {}}}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"inner": {"type": "object"}}},
            "openList": {"type": "array", "x-kubernetes-preserve-unknown-fields": true,
                "items": {"type": "object", "properties": {"inner": {"type": "object"}}}},
            "embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"d": {}}},
            "anything": {"type": "object", "additionalProperties": true},
        }})
    }

    #[test]
    fn unknown_fields_are_dropped_and_reported() {
        let schema = schema();
        let node = compile::schema(Schema(&schema), true);
        let mut value = json!({
            "kind": "K", "x": 1, "a": "1", "list": [{"b": "1", "x": 1}, {"y": 2}],
            "map": {"k": {"c": 1, "x": 1}},
            "open": {"x": {"y": 1}, "inner": {"x": 1}},
            "openList": [{"x": 1, "inner": {"x": 1}}],
            "embedded": {"kind": "E", "d": 1, "x": 1},
            "anything": {"k": {"x": 1}, "l": "text"},
        });
        let dropped = prune(&mut value, &node, true);
        let want = json!({
            "kind": "K", "a": "1", "list": [{"b": "1"}, {}], "map": {"k": {"c": 1}},
            "open": {"x": {"y": 1}, "inner": {}}, "openList": [{"x": 1, "inner": {}}],
            "embedded": {"kind": "E", "d": 1}, "anything": {"k": {}, "l": "text"},
        });
        assert_eq!(value, want);
        let want = [
            "anything.k.x",
            "embedded.x",
            "list[0].x",
            "list[1].y",
            "map.k.x",
            "open.inner.x",
            "openList[0].inner.x",
            "x",
        ];
        assert_eq!(dropped, want);
    }

    #[test]
    fn meta_fields_are_retained_in_resources_only() {
        let schema = schema();
        let node = compile::schema(Schema(&schema), true);
        let mut value = json!({"kind": "K"});
        assert!(prune(&mut value, &node, false).is_empty());
        assert_eq!(value, json!({}));
    }

    #[test]
    fn nulls_without_default_are_dropped() {
        let schema = json!({"type": "object", "properties": {
            "plain": {"type": "string"},
            "nullable": {"type": "string", "nullable": true},
            "defaulted": {"type": "string", "default": "d"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        }});
        let node = compile::schema(Schema(&schema), true);
        let mut value = json!({"plain": null, "nullable": null, "defaulted": null, "unknown": null,
            "list": [null, {"x": null}], "map": {"k": null}});
        prune_nulls(&mut value, &node);
        let want =
            json!({"nullable": null, "defaulted": null, "unknown": null, "list": [null, {}], "map": {}});
        assert_eq!(value, want);
    }
}
