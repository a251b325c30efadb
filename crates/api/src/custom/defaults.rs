//! Validation of default values by their schema.

use super::correlation::Ratchet;
use super::node::Node;
use super::prune::prune;
use super::schema::Schema;
use super::{compile, embedded, evaluation, values};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// Errors of the default values in a schema. `pruned`: they must not have fields that the schema does not describe.
pub fn check(schema: Schema<'_>, pruned: bool, path: &Path<'_>) -> ErrorList {
    if !schema.any(&|of| of.default().is_some()) {
        return Vec::new();
    }
    let mut check = DefaultCheck { pruned, budget: evaluation::BUDGET, errors: Vec::new() };
    check.walk(&compile::schema(schema, true), true, path);
    check.errors
}

struct DefaultCheck {
    pruned: bool,
    /// Remaining cost limit of rules on default values.
    budget: u64,
    errors: ErrorList,
}

impl DefaultCheck {
    fn walk(&mut self, node: &Node, is_root: bool, path: &Path<'_>) {
        if !node.below.defaults {
            return;
        }
        if let Some(default) = &node.default {
            self.value(default, node, is_root, &path.child("default"));
        }
        // Not allowed below `additionalProperties`.
        if let Some(items) = &node.items {
            self.walk(items, false, &path.child("items"));
        }
        let path = path.child("properties");
        for property in &node.properties {
            self.walk(&property.node, false, &path.key(&property.name));
        }
    }

    fn value(&mut self, default: &Value, node: &Node, is_root: bool, path: &Path<'_>) {
        if self.pruned && is_unpruned(default, node, is_root) {
            self.errors.push(FieldError::invalid(path, default, "must not have unknown fields"));
        }
        let mut found = embedded::check(default, node, is_root, path);
        if found.is_empty() {
            found = values::check_default(default, node, path);
        }
        // A new value is not a change of an old one.
        for old in [Some(default), None] {
            if found.is_empty() {
                let ratchet = Ratchet::default();
                found = evaluation::check(node, default, old, ratchet, &mut self.budget, path).errors;
            }
        }
        self.errors.extend(found);
    }
}

fn is_unpruned(default: &Value, node: &Node, is_root: bool) -> bool {
    let mut known = default.clone();
    prune(&mut known, node, is_root);
    known != *default
}

/// Finds default values with fields that the schema does not describe.
pub fn any_unpruned(schema: Schema<'_>) -> bool {
    schema.any(&|of| {
        of.default().is_some_and(|default| is_unpruned(default, &compile::schema_without_rules(of), false))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_must_match_their_schema() {
        let schema = json!({"type": "object", "properties": {
            "good": {"type": "object", "default": {"a": 1}, "properties": {"a": {"type": "integer"}}},
            "unknown": {"type": "object", "default": {"x": 1}},
            "wrong": {"type": "string", "default": 1},
        }});
        let errors = check(Schema(&schema), true, &Path::new("s"));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                r#"s.properties[unknown].default: Invalid value: {"x":1}: must not have unknown fields"#,
                r#"s.properties[wrong].default: Invalid value: "integer":  in body must be of type string: "integer""#,
            ]
        );
        assert!(any_unpruned(Schema(&schema)));
        assert_eq!(check(Schema(&schema), false, &Path::new("s")).len(), 1);
    }
}
