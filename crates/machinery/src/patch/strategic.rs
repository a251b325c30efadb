//! Strategic merge patch: a merge patch in which the schema defines the lists that merge by key.
//!
//! Directives: `$patch: replace|delete|merge`, `$retainKeys`, `$deleteFromPrimitiveList/<field>`,
//! `$setElementOrder/<field>`.

use super::{PatchError, show_plain};
use crate::schema::{SchemaRef, Shape};
use serde_json::{Map, Value};
use std::collections::HashSet;

mod lists;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Merges `patch` into `object`, an object of the type `schema`.
pub fn apply(object: &mut Value, patch: &Value, schema: SchemaRef<'_>) -> Result<(), PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::BadRequest("invalid JSON document".to_owned()));
    };
    let Value::Object(target) = object else {
        return Err(PatchError::BadRequest("invalid JSON document".to_owned()));
    };
    merge_map(target, patch.clone(), Type(Some(schema)))
}

/// Patch strategy of a field.
struct Strategy<'a> {
    merge: bool,
    replace: bool,
    /// Empty when the field has none.
    merge_key: &'a str,
}

/// The type for merging a map or list; `None` below free-form data, where every merge is plain.
#[derive(Clone, Copy)]
struct Type<'a>(Option<SchemaRef<'a>>);

impl<'a> Type<'a> {
    /// The type and strategy of a member that holds a map or a list.
    fn member(self, name: &str) -> Result<(Type<'a>, Strategy<'a>), PatchError> {
        let plain = Strategy { merge: false, replace: false, merge_key: "" };
        let Some(schema) = self.0 else {
            return Ok((Type(None), plain));
        };
        match schema.shape() {
            Shape::Object => match schema.field_decl(name) {
                Some(field) => {
                    let strategy = Strategy {
                        merge: field.patch.merge,
                        replace: field.patch.replace,
                        merge_key: field.merge_key.as_deref().unwrap_or(""),
                    };
                    Ok((Type(Some(schema.of_field(field))), strategy))
                }
                None if schema.preserves_unknown() => Ok((Type(None), plain)),
                None => {
                    let kind = schema.node().name.rsplit('.').next().unwrap_or("");
                    Err(PatchError::Internal(format!(
                        "unable to find api field in struct {kind} for the json field {name:?}"
                    )))
                }
            },
            Shape::Any => Ok((Type(None), plain)),
            Shape::Map => Err(PatchError::Internal(
                "merging an object in json but data type is not struct, instead is: map".to_owned(),
            )),
            _ => Err(PatchError::Internal(
                "merging an object in json but data type is not struct, instead is: string".to_owned(),
            )),
        }
    }

    /// The type of a list's items.
    fn items(self) -> Type<'a> {
        Type(self.0.and_then(SchemaRef::element))
    }
}

fn internal<T>(text: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Internal(text.into()))
}

fn merge_map(
    original: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Type<'_>,
) -> Result<(), PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        match directive.as_str() {
            Some("replace") => *original = patch,
            Some("delete") => original.clear(),
            _ => {
                patch.insert(DIRECTIVE.to_owned(), directive.clone());
                let shown = show_plain(&Value::Object(patch));
                return internal(format!("unknown patch type: {} in map: {shown}", show_plain(&directive)));
            }
        }
        return Ok(());
    }
    retain_keys(original, &mut patch)?;
    set_element_orders(original, &mut patch, schema)?;
    for (key, value) in patch {
        let (key, deletes) = match key.strip_prefix(DELETE_FROM) {
            None => (key.as_str(), false),
            Some(rest) => match rest.strip_prefix('/') {
                Some(field) => (field, true),
                None => {
                    return Err(PatchError::BadRequest("invalid patch format of primitive list".to_owned()));
                }
            },
        };
        if value.is_null() {
            original.remove(key);
            continue;
        }
        match (original.get_mut(key), value) {
            (Some(Value::Object(current)), Value::Object(fields)) => {
                let (schema, strategy) = schema.member(key)?;
                if strategy.replace {
                    *current = fields;
                } else {
                    merge_map(current, fields, schema)?;
                }
            }
            (Some(Value::Array(current)), Value::Array(items)) => {
                let (schema, strategy) = schema.member(key)?;
                if strategy.merge || deletes {
                    lists::merge(current, items, schema.items(), strategy.merge_key, deletes)?;
                } else {
                    *current = items;
                }
            }
            _ if deletes => {}
            (Some(current), value) => match without_directives(value, true) {
                Some(value) => *current = value,
                None => drop(original.remove(key)),
            },
            (None, value) => {
                if let Some(value) = without_directives(value, true) {
                    original.insert(key.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

/// A new value without directives; `None` if it consists of directives only.
fn without_directives(value: Value, drop_nulls: bool) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter()
                .filter(|(_, v)| !v.is_null() || !drop_nulls)
                .filter_map(|(k, v)| Some((k, without_directives(v, drop_nulls)?)))
                .collect(),
        )),
        Value::Array(items) => {
            Some(Value::Array(items.into_iter().filter_map(|v| without_directives(v, drop_nulls)).collect()))
        }
        scalar => Some(scalar),
    }
}

/// `$retainKeys`: the keys that stay; all others are removed from the original.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let malformed = || PatchError::BadRequest("invalid patch format of retainKeys".to_owned());
    let keys = keys.as_array().ok_or_else(malformed)?;
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let is_retained = |key: &str| keys.contains(key);
    for (key, value) in patch.iter() {
        let directive = key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
        if !value.is_null() && !directive && !is_retained(key) {
            return Err(malformed());
        }
    }
    original.retain(|key, _| is_retained(key));
    Ok(())
}

/// `$setElementOrder/<field>`: merges the field's list and sorts it into the specified order.
fn set_element_orders(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Type<'_>,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = patch.remove(&directive).unwrap_or(Value::Null);
        let Value::Array(order) = order else {
            return internal(bad_type("[]interface {}", &order));
        };
        let Some(field) = directive.strip_prefix(SET_ORDER).and_then(|r| r.strip_prefix('/')) else {
            return Err(PatchError::BadRequest("invalid patch format of setElementOrder list".to_owned()));
        };
        let as_list = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => internal(bad_type("[]interface {}", &other)),
        };
        let existing = as_list(original.get(field).cloned())?;
        let patched = as_list(patch.remove(field))?;
        let (list_type, strategy) = schema.member(field)?;
        lists::check_order(patched.as_deref().unwrap_or(&[]), &order, strategy.merge_key)?;
        let merged = match (existing.clone(), patched.clone()) {
            (None, None) => continue,
            (Some(existing), None) => existing,
            (None, Some(patched)) => match without_directives(Value::Array(patched), false) {
                Some(Value::Array(items)) => items,
                _ => continue,
            },
            (Some(mut existing), Some(patched)) => {
                if strategy.merge {
                    lists::merge(&mut existing, patched, list_type.items(), strategy.merge_key, false)?;
                    existing
                } else {
                    patched
                }
            }
        };
        let before = existing.unwrap_or_default();
        let maps = lists::of_maps(&before, patched.as_deref().unwrap_or(&[]))?;
        let ordered = lists::order(merged, &order, &before, strategy.merge_key, maps)?;
        original.insert(field.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

/// `expected a map[string]interface {}, but received a string`.
fn bad_type(expected: &str, actual: &Value) -> String {
    let actual = match actual {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    format!("expected a {expected}, but received a {actual}")
}

#[cfg(test)]
mod tests;
