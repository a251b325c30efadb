//! Reads and writes an object's metadata independently of its kind.
//!
//! ```
//! use machinery::meta;
//! use serde_json::json;
//!
//! let mut map = json!({"metadata": {"name": "settings", "annotations": {"team": "a"}}});
//! meta::metadata_mut(&mut map).insert("namespace".to_owned(), json!("default"));
//! assert_eq!((meta::namespace(&map), meta::name(&map)), ("default", "settings"));
//! assert_eq!(meta::annotation(&map, "team"), Some("a"));
//! assert_eq!(meta::uid(&map), "");
//! ```

use crate::map;
use serde_json::{Map, Value};

/// `object.metadata.<field>` as a string; empty when absent.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object).and_then(|m| map::get(m, field)).and_then(Value::as_str).unwrap_or("")
}

pub fn name(object: &Value) -> &str {
    text(object, "name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

/// `metadata`, if it exists and is a map.
pub fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    map::of(object, "metadata")?.as_object()
}

/// `metadata`, created if it is missing. The object itself must be a map.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(object, "metadata")
}

/// A map-valued child of a map, created if it is missing or not a map.
pub fn child_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Value::Object(map) = object else { unreachable!("made a map above") };
    if !map::get(map, field).is_some_and(Value::is_object) {
        map.insert(field.to_owned(), Value::Object(Map::new()));
    }
    let Some(Value::Object(child)) = map::get_mut(map, field) else { unreachable!("made a map above") };
    child
}

pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object).and_then(|m| map::get(m, "labels")).and_then(Value::as_object)
}

pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object).and_then(|m| map::get(m, "annotations")).and_then(Value::as_object)
}

pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    annotations(object).and_then(|a| map::get(a, key)).and_then(Value::as_str)
}

pub fn finalizers(object: &Value) -> &[Value] {
    list(object, "finalizers")
}

pub fn owner_references(object: &Value) -> &[Value] {
    list(object, "ownerReferences")
}

pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    metadata(object).and_then(|m| map::get(m, "deletionTimestamp")).and_then(Value::as_str)
}

pub fn generation(object: &Value) -> i64 {
    metadata(object).and_then(|m| map::get(m, "generation")).and_then(Value::as_i64).unwrap_or(0)
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    metadata(object).and_then(|m| map::get(m, field)).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
