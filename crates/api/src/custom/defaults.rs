//! Default values must be values of their schema.

use super::prune::prune;
use super::schema::Schema;
use super::{evaluation, values};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Map, Value, names};

/// What is wrong with the default values in a schema. `pruned`: they must not have fields that it does not know.
pub fn check(schema: Schema<'_>, pruned: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    walk(schema, true, pruned, &mut { evaluation::BUDGET }, path, &mut errors);
    errors
}

fn walk(
    schema: Schema<'_>,
    is_root: bool,
    pruned: bool,
    budget: &mut u64,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if let Some(default) = schema.default() {
        let path = path.child("default");
        if pruned && is_unpruned(schema, is_root) {
            errors.push(FieldError::invalid(&path, default, "must not have unknown fields"));
        }
        let mut found = embedded(default, schema, is_root, &path);
        if found.is_empty() {
            found = values::check_default(default, schema, &path);
        }
        if found.is_empty() {
            found = evaluation::check(default, Some(default), schema, is_root, budget, &path);
        }
        // A new value is not a change of an old one.
        if found.is_empty() {
            found = evaluation::check(default, None, schema, is_root, budget, &path);
        }
        errors.extend(found);
    }
    // Below `additionalProperties` there are none.
    if let Some(items) = schema.items() {
        walk(items, false, pruned, budget, &path.child("items"), errors);
    }
    let path = path.child("properties");
    for (name, of) in schema.properties() {
        walk(of, false, pruned, budget, &path.key(name), errors);
    }
}

/// Resources inside a default value must be resources.
fn embedded(value: &Value, schema: Schema<'_>, is_root: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    match value {
        Value::Object(map) => {
            if is_root || schema.is_embedded() {
                errors.extend(resource(map, path));
            }
            for (name, value) in map {
                if let Some(of) = schema.property(name) {
                    errors.extend(embedded(value, of, false, &path.child(name)));
                } else if let Some(of) = schema.additional_schema() {
                    errors.extend(embedded(value, of, false, &path.key(name)));
                }
            }
        }
        Value::Array(items) => {
            let Some(of) = schema.items() else { return errors };
            for (index, item) in items.iter().enumerate() {
                errors.extend(embedded(item, of, false, &path.index(index)));
            }
        }
        _ => {}
    }
    errors
}

fn resource(map: &Map<String, Value>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for field in ["apiVersion", "kind"] {
        let path = path.child(field);
        match map.get(field) {
            None => errors.push(FieldError::required(&path, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid_str(&path, text, "must not be empty"));
            }
            Some(Value::String(text)) if field == "kind" => {
                let problems = names::dns1035_label(&text.to_lowercase(), false);
                if !problems.is_empty() {
                    let why = problems.join(",");
                    let detail = format!("may have mixed case, but should otherwise match: {why}");
                    errors.push(FieldError::invalid_str(&path, text, detail));
                }
            }
            Some(Value::String(text)) if text.matches('/').count() > 1 => {
                let detail = format!("unexpected GroupVersion string: {text}");
                errors.push(FieldError::invalid_str(&path, text, detail));
            }
            Some(Value::String(_)) => {}
            Some(other) => errors.push(FieldError::invalid(&path, other, "must be a string")),
        }
    }
    errors
}

fn is_unpruned(schema: Schema<'_>, is_root: bool) -> bool {
    schema.default().is_some_and(|default| {
        let mut known = default.clone();
        prune(&mut known, Some(schema), is_root);
        known != *default
    })
}

/// Whether a default value anywhere in a schema has fields that it does not know.
pub fn any_unpruned(schema: Schema<'_>) -> bool {
    schema.any(&|of| is_unpruned(of, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_are_values_of_their_schema() {
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
