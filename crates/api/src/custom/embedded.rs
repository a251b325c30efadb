//! Metadata of resources that are embedded in a custom resource, and of the resource itself.

use super::node::Node;
use crate::schema::schema;
use machinery::codec::typed;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::schema::SchemaRef;
use machinery::{Map, Value, names};
use std::sync::LazyLock;

/// Handling of metadata fields of the wrong type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// An error, as in requests.
    Refuse,
    /// The field is dropped, as for objects read from the store.
    Drop,
}

fn object_meta() -> Option<SchemaRef<'static>> {
    static META: LazyLock<Option<SchemaRef<'static>>> =
        LazyLock::new(|| schema().named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));
    *META
}

/// Normalizes metadata to its type. Returns the unknown fields, which are dropped.
pub fn coerce_metadata(metadata: &mut Value, malformed: Malformed) -> Result<Vec<String>, String> {
    let Some(of) = object_meta() else { return Ok(Vec::new()) };
    let mut coerced = metadata.clone();
    let report = match (typed::normalize(&mut coerced, of), malformed) {
        (Ok(report), _) => report,
        (Err(error), Malformed::Refuse) => return Err(error.message),
        (Err(_), Malformed::Drop) => {
            let Value::Object(fields) = metadata else {
                return Err("invalid metadata: expected object".to_owned());
            };
            let fits = |name: &String, value: &mut Value| {
                let mut single = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
                typed::normalize(&mut single, of).is_ok()
            };
            fields.retain(fits);
            coerced = metadata.clone();
            typed::normalize(&mut coerced, of).unwrap_or_default()
        }
    };
    *metadata = coerced;
    if let Value::Object(fields) = metadata
        && fields.get("creationTimestamp").is_some_and(Value::is_null)
    {
        fields.remove("creationTimestamp");
    }
    let unknown =
        |message: &String| message.strip_prefix("unknown field \"")?.strip_suffix('"').map(str::to_owned);
    Ok(report.strict.iter().filter_map(unknown).collect())
}

/// Normalizes the metadata of embedded resources to its type. Returns the paths of unknown fields, which are dropped.
pub fn coerce(
    value: &mut Value,
    node: &Node,
    malformed: Malformed,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    if !node.below.embedded {
        return Ok(());
    }
    match value {
        Value::Object(fields) => {
            if node.embedded {
                type_fields(fields, malformed, path)?;
                if let Some(metadata) = fields.get_mut("metadata") {
                    let path = path.child("metadata");
                    match coerce_metadata(metadata, malformed) {
                        Ok(found) => unknown.extend(found.iter().map(|name| format!("{path}.{name}"))),
                        Err(why) if malformed == Malformed::Refuse => {
                            return Err(FieldError::invalid(&path, metadata, why));
                        }
                        Err(_) => {}
                    }
                }
            }
            for (name, value) in fields {
                match (node.property(name), &node.additional) {
                    (Some(of), _) => coerce(value, of, malformed, &path.child(name), unknown)?,
                    (None, Some(of)) => coerce(value, of, malformed, &path.key(name), unknown)?,
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            let Some(of) = &node.items else { return Ok(()) };
            for (index, item) in items.iter_mut().enumerate() {
                coerce(item, of, malformed, &path.index(index), unknown)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn type_fields(
    fields: &mut Map<String, Value>,
    malformed: Malformed,
    path: &Path<'_>,
) -> Result<(), FieldError> {
    for name in ["apiVersion", "kind"] {
        match fields.get(name) {
            None | Some(Value::String(_)) => {}
            Some(_) if malformed == Malformed::Drop => {
                fields.remove(name);
            }
            Some(other) => return Err(FieldError::invalid(&path.child(name), other, "must be a string")),
        }
    }
    Ok(())
}

/// Errors of the metadata of embedded resources. `is_resource`: the value is itself a resource.
pub fn check(value: &Value, node: &Node, is_resource: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    walk(value, node, is_resource, path, &mut errors);
    errors
}

fn walk(value: &Value, node: &Node, is_resource: bool, path: &Path<'_>, errors: &mut ErrorList) {
    if !node.below.embedded && !is_resource {
        return;
    }
    match value {
        Value::Object(fields) => {
            if is_resource || node.embedded {
                resource(fields, path, errors);
            }
            for (name, value) in fields {
                match (node.property(name), &node.additional) {
                    (Some(of), _) => walk(value, of, false, &path.child(name), errors),
                    (None, Some(of)) => walk(value, of, false, &path.key(name), errors),
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            let Some(of) = &node.items else { return };
            for (index, item) in items.iter().enumerate() {
                walk(item, of, false, &path.index(index), errors);
            }
        }
        _ => {}
    }
}

fn resource(fields: &Map<String, Value>, path: &Path<'_>, errors: &mut ErrorList) {
    for name in ["apiVersion", "kind"] {
        if !fields.contains_key(name) {
            errors.push(FieldError::required(&path.child(name), ""));
        }
    }
    for name in ["apiVersion", "kind"] {
        let Some(value) = fields.get(name) else { continue };
        let path = path.child(name);
        match value {
            Value::String(text) if text.is_empty() => {
                errors.push(FieldError::invalid_str(&path, text, "must not be empty"));
            }
            Value::String(text) if name == "kind" => {
                let problems = names::dns1035_label(&text.to_lowercase(), false);
                if !problems.is_empty() {
                    let why = problems.join(",");
                    let detail = format!("may have mixed case, but should otherwise match: {why}");
                    errors.push(FieldError::invalid_str(&path, text, detail));
                }
            }
            Value::String(text) if text.matches('/').count() > 1 => {
                let detail = format!("unexpected GroupVersion string: {text}");
                errors.push(FieldError::invalid_str(&path, text, detail));
            }
            Value::String(_) => {}
            other => errors.push(FieldError::invalid(&path, other, "must be a string")),
        }
    }
    let Some(metadata) = fields.get("metadata") else { return };
    let path = path.child("metadata");
    let mut coerced = metadata.clone();
    if let Err(why) = coerce_metadata(&mut coerced, Malformed::Refuse) {
        errors.push(FieldError::invalid(&path, metadata, why));
        return;
    }
    let Value::Object(meta) = &mut coerced else { return };
    let text = |meta: &Map<String, Value>, name: &str| {
        meta.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty())
    };
    // Embedded resources need no name.
    if !text(meta, "name") {
        meta.insert("name".to_owned(), "fakename".into());
    }
    let namespaced = text(meta, "namespace");
    errors.extend(names::validate_object_meta(&coerced, namespaced, names::path_segment_name, &path));
}

#[cfg(test)]
mod tests;
