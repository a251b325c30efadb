//! Merges a partial object into a whole one without regard to owners, for mutating admission policies.

use super::merge::merge;
use super::types::Type;
use super::walk::validate;
use crate::schema::{SchemaRef, Shape};
use serde_json::Value;

/// Depth limit of the walk.
const MAX_DEPTH: usize = 100;

/// Reason why a partial object cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    #[error("failed to convert patch object to typed object: {0}")]
    Type(String),
    #[error("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {0}")]
    Atomic(String),
}

/// `live` with `partial` merged in. `partial` must not contain atomic values, as naming a part of one would drop the
/// rest.
pub fn overlay(schema: SchemaRef<'_>, live: &Value, partial: &Value) -> Result<Value, OverlayError> {
    let ty = Type::Known(schema);
    if let Some(problem) = validate(ty, partial) {
        return Err(OverlayError::Type(problem));
    }
    let mut found = Vec::new();
    atomics(schema, partial, &mut String::new(), &mut found, 0);
    if !found.is_empty() {
        return Err(OverlayError::Atomic(found.join(", ")));
    }
    Ok(merge(ty, Some(live), Some(partial)).unwrap_or_else(|| live.clone()))
}

fn atomics(schema: SchemaRef<'_>, value: &Value, path: &mut String, found: &mut Vec<String>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let length = path.len();
    match (schema.shape(), value) {
        (Shape::Object | Shape::Map, Value::Object(members)) => {
            if schema.is_atomic() {
                found.push(path.clone());
            }
            for (name, member) in members {
                let Some(of) = schema.field(name) else { continue };
                path.push('.');
                path.push_str(name);
                atomics(of, member, path, found, depth + 1);
                path.truncate(length);
            }
        }
        (Shape::List, Value::Array(items)) => {
            if schema.is_atomic() {
                found.push(path.clone());
            }
            let Some(of) = schema.element() else { return };
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                atomics(of, item, path, found, depth + 1);
                path.truncate(length);
            }
        }
        _ => {}
    }
}
