//! Default values of absent fields, and of nulls that are not allowed.

use super::node::Node;
use machinery::codec::BudgetExceeded;
use machinery::{Map, Value};

/// Sizes of values in memory, as [`machinery::codec`] estimates them.
const VALUE_BYTES: usize = 32;
const MAP_BYTES: usize = 640;
/// Memory limit of the default values of one object: a schema can repeat a large default in every item of a list.
const MAX_BYTES: usize = 64 << 20;

/// Sets default values.
pub fn default(value: &mut Value, node: &Node) -> Result<(), BudgetExceeded> {
    Defaulting { left: MAX_BYTES }.walk(value, node)
}

struct Defaulting {
    left: usize,
}

impl Defaulting {
    fn copy(&mut self, default: &Value) -> Result<Value, BudgetExceeded> {
        self.left = self.left.checked_sub(size(default)).ok_or(BudgetExceeded)?;
        Ok(default.clone())
    }

    fn walk(&mut self, value: &mut Value, node: &Node) -> Result<(), BudgetExceeded> {
        if !node.below.defaults {
            return Ok(());
        }
        match value {
            Value::Object(fields) => self.fields(fields, node),
            Value::Array(items) => {
                let Some(of) = &node.items else { return Ok(()) };
                items.iter_mut().try_for_each(|item| self.element(item, of))
            }
            _ => Ok(()),
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>, node: &Node) -> Result<(), BudgetExceeded> {
        for property in &node.properties {
            let Some(default) = &property.node.default else { continue };
            let name = property.name.as_ref();
            match fields.get_mut(name) {
                None => {
                    self.left = self.left.checked_sub(name.len() + VALUE_BYTES).ok_or(BudgetExceeded)?;
                    let default = self.copy(default)?;
                    fields.insert(name.to_owned(), default);
                }
                Some(value) if value.is_null() && !property.node.nullable => *value = self.copy(default)?,
                Some(_) => {}
            }
        }
        for (name, value) in fields {
            match (node.property(name), &node.additional) {
                (Some(of), _) => self.walk(value, of)?,
                (None, Some(of)) => self.element(value, of)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// An item of a list or a value of a map: null becomes the default where it is not allowed.
    fn element(&mut self, value: &mut Value, of: &Node) -> Result<(), BudgetExceeded> {
        if let Some(default) = of.default.as_ref().filter(|_| value.is_null() && !of.nullable) {
            *value = self.copy(default)?;
        }
        self.walk(value, of)
    }
}

fn size(value: &Value) -> usize {
    VALUE_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(size).sum(),
            Value::Object(fields) => {
                MAP_BYTES + fields.iter().map(|(name, value)| name.len() + size(value)).sum::<usize>()
            }
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::super::schema::Schema;
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_fields_and_nulls_get_defaults() {
        let text = |default: &str| json!({"type": "string", "default": default});
        let schema = json!({"type": "object", "properties": {
            "a": text("A"),
            "nullable": {"type": "string", "nullable": true, "default": "N"},
            "object": {"type": "object", "default": {}, "properties": {"inner": text("I")}},
            "absent": {"type": "object", "properties": {"inner": text("I")}},
            "list": {"type": "array", "items": {"type": "string", "default": "L"}},
            "objects": {"type": "array", "items": {"type": "object", "properties": {"x": text("X")}}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "default": "M"}},
        }});
        let node = compile::schema(Schema(&schema), true);
        for (value, want) in [
            (json!({}), json!({"a": "A", "nullable": "N", "object": {"inner": "I"}})),
            (
                json!({"a": null, "nullable": null, "object": null, "absent": {}}),
                json!({"a": "A", "nullable": null, "object": {"inner": "I"}, "absent": {"inner": "I"}}),
            ),
            (
                json!({"a": "x", "nullable": "y", "object": {"inner": "z"}, "list": [null, "l"],
                    "objects": [{}, {"x": "1"}], "map": {"k": null, "l": "1"}}),
                json!({"a": "x", "nullable": "y", "object": {"inner": "z"}, "list": ["L", "l"],
                    "objects": [{"x": "X"}, {"x": "1"}], "map": {"k": "M", "l": "1"}}),
            ),
        ] {
            let mut defaulted = value.clone();
            assert_eq!(default(&mut defaulted, &node), Ok(()));
            assert_eq!(defaulted, want, "{value}");
        }
    }

    #[test]
    fn repeated_defaults_exceed_memory_limit() {
        let large = "x".repeat(1 << 20);
        let schema = json!({"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "string", "default": large}}}});
        let node = compile::schema(Schema(&schema), true);
        let mut value = json!({"list": vec![Value::Null; 1000]});
        assert_eq!(default(&mut value, &node), Err(BudgetExceeded));
    }
}
