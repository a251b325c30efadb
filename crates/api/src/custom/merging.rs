//! Validation of list types and map types: atomic, set, map.

use super::definition::Demands;
use super::schema::Schema;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// Validation errors of list and map types.
pub fn check(schema: Schema<'_>, demands: Demands, path: &Path<'_>, errors: &mut ErrorList) {
    const LIST_TYPES: [&str; 3] = ["atomic", "set", "map"];
    const MAP_TYPES: [&str; 2] = ["atomic", "granular"];
    let kind = schema.kind();
    let must_be = |wanted: &str, of: &str| {
        let detail = format!("must be {wanted} if {of} is specified");
        match kind {
            "" => FieldError::required(&path.child("type"), detail),
            kind => FieldError::invalid_str(&path.child("type"), kind, detail),
        }
    };
    if let Some(map_type) = schema.map_type() {
        if kind != "object" {
            errors.push(must_be("object", "x-kubernetes-map-type"));
        }
        if !MAP_TYPES.contains(&map_type) {
            let path = path.child("x-kubernetes-map-type");
            errors.push(FieldError::not_supported(&path, &map_type.into(), &MAP_TYPES));
        }
    }
    let list_type_path = path.child("x-kubernetes-list-type");
    if let Some(list_type) = schema.list_type() {
        if kind != "array" {
            errors.push(must_be("array", "x-kubernetes-list-type"));
        } else if let Some(field) = nonatomic_set_field(schema).filter(|_| demands.atomic_sets) {
            let path = path.child("items");
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let value = schema.items().map_or(&Value::Null, |items| items.field("x-kubernetes-list-type"));
            errors.push(FieldError::invalid(&path.child(field), value, detail));
        }
        if !LIST_TYPES.contains(&list_type) {
            errors.push(FieldError::not_supported(&list_type_path, &list_type.into(), &LIST_TYPES));
        }
    }
    if schema.map_keys().next().is_some() {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match schema.list_type() {
            None => errors.push(FieldError::required(&list_type_path, detail)),
            Some("map") => {}
            Some(other) => errors.push(FieldError::invalid_str(&list_type_path, other, detail)),
        }
    }
    if schema.list_type() == Some("map") {
        list_map(schema, path, errors);
    }
    if demands.sound_map_keys {
        errors.extend(map_keys(schema, path));
    }
}

/// Field that makes the items of a set non-atomic, if any.
pub fn nonatomic_set_field(schema: Schema<'_>) -> Option<&'static str> {
    let items = schema.items().filter(|_| schema.list_type() == Some("set"))?;
    match items.kind() {
        "array" if items.list_type().is_some_and(|of| of != "atomic") => Some("x-kubernetes-list-type"),
        "object" if items.map_type() != Some("atomic") => Some("x-kubernetes-map-type"),
        _ => None,
    }
}

/// Validates a list of type map.
fn list_map(schema: Schema<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let (keys_path, items_path) = (path.child("x-kubernetes-list-map-keys"), path.child("items"));
    if schema.map_keys().next().is_none() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(&keys_path, detail));
    }
    let Some(items) = schema.items() else {
        errors.push(match schema.list("items").next() {
            None => FieldError::required(&items_path, "must have a schema if x-kubernetes-list-type is map"),
            Some(_) => {
                let detail = "must only have a single schema if x-kubernetes-list-type is map";
                FieldError::invalid(&items_path, schema.field("items"), detail)
            }
        });
        return;
    };
    if items.kind() != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid_str(&items_path.child("type"), items.kind(), detail));
        return;
    }
    let properties_path = items_path.child("properties");
    let mut seen = Vec::new();
    for key in schema.map_keys() {
        let keys = schema.field("x-kubernetes-list-map-keys");
        match items.property(key) {
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(&keys_path, keys, detail));
            }
            Some(of) if matches!(of.kind(), "array" | "object") => {
                let path = properties_path.key(key);
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid_str(&path.child("type"), items.kind(), detail));
            }
            Some(_) => {}
        }
        if seen.contains(&key) {
            errors.push(FieldError::invalid(&keys_path, keys, "must not contain duplicate entries"));
        }
        seen.push(key);
    }
}

/// Requires non-nullable items of maps and sets, and non-nullable keys of maps that are required or have a default.
pub fn map_keys(schema: Schema<'_>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let (Some(items), Some(list_type @ ("set" | "map"))) = (schema.items(), schema.list_type()) else {
        return errors;
    };
    let path = path.child("items");
    if items.flag("nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(&path.child("nullable"), detail));
    }
    if list_type == "set" {
        return errors;
    }
    let path = path.child("properties");
    for key in schema.map_keys() {
        let Some(of) = items.property(key) else { continue };
        let path = path.key(key);
        if of.default().is_none() && !items.required().any(|required| required == key) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(&path.child("default"), detail));
        }
        if of.flag("nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(&path.child("nullable"), detail));
        }
    }
    errors
}
