//! Walks over one object with its type: its field set, removal of fields, validation of applied objects.

use super::path::PathElement;
use super::set::{Entry, FieldSet};
use super::types::{Members, MergeType, Type, as_list, as_map, item_element};
use crate::field::show_str;
use crate::patch::show_plain;
use crate::schema::Shape;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Every field of an applied object.
pub(super) fn to_field_set(ty: Type<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect(ty, value, &mut set);
    set
}

/// Collects the fields below a value; returns whether the value itself is a member.
fn collect(ty: Type<'_>, value: &Value, set: &mut FieldSet) -> bool {
    match ty.kind(Some(value)) {
        MergeType::Leaf => true,
        MergeType::Map(members) => {
            for (name, value) in as_map(Some(value)).into_iter().flatten() {
                let mut children = FieldSet::default();
                let leaf = collect(members.of(name), value, &mut children);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                let member = leaf || empty || !members.declares(name);
                set.push(|| PathElement::field(name), member, children);
            }
            false
        }
        kind @ (MergeType::Set | MergeType::Keyed(_)) => {
            let items = as_list(Some(value)).into_iter().flatten();
            let mut elements: Vec<(PathElement, &Value)> =
                items.filter_map(|v| Some((item_element(kind, v).ok()?, v))).collect();
            elements.sort_by(|a, b| a.0.cmp(&b.0));
            let item_type = match kind {
                MergeType::Keyed(list) => list.element().map_or(Type::Deduced, Type::Known),
                _ => Type::Deduced,
            };
            let mut elements = elements.into_iter().peekable();
            while let Some((element, value)) = elements.next() {
                let mut children = FieldSet::default();
                let mut duplicate = false;
                while elements.next_if(|(e, _)| *e == element).is_some() {
                    duplicate = true;
                }
                if !duplicate {
                    collect(item_type, value, &mut children);
                }
                set.push(|| element, true, children);
            }
            false
        }
    }
}

/// The set with every declared field on a path as a member of its own.
pub(super) fn with_parents(set: &FieldSet, ty: Type<'_>) -> FieldSet {
    let schema = match ty {
        Type::Known(schema) => Some(schema),
        Type::Deduced => None,
    };
    let below = |element: &PathElement| -> (Type<'_>, bool) {
        let Some(schema) = schema else {
            return (Type::Deduced, false);
        };
        match (element, schema.shape()) {
            (PathElement::Field(name), Shape::Object) => match schema.field(name) {
                Some(field) => (Type::Known(field), true),
                None => (Type::Deduced, false),
            },
            (PathElement::Field(_), Shape::Map) | (PathElement::Key(_), Shape::List) => {
                (schema.element().map_or(Type::Deduced, Type::Known), false)
            }
            _ => (Type::Deduced, false),
        }
    };
    let entries = set.entries.iter().map(|entry| {
        let (ty, declared) = below(&entry.element);
        Entry {
            element: entry.element.clone(),
            member: entry.member || (declared && !entry.children.is_empty()),
            children: with_parents(&entry.children, ty),
        }
    });
    FieldSet { entries: entries.collect() }
}

/// A copy of the value without the fields of the set. Values that become empty are replaced by null.
pub(super) fn remove(ty: Type<'_>, value: &Value, set: &FieldSet) -> Value {
    match ty.kind(Some(value)) {
        MergeType::Leaf => match value {
            Value::Object(_) | Value::Array(_) => Value::Null,
            scalar => scalar.clone(),
        },
        MergeType::Map(members) => {
            let mut out = Map::new();
            for (name, value) in as_map(Some(value)).into_iter().flatten() {
                let retained = match set.field_entry(name) {
                    Some(entry) if entry.member => continue,
                    Some(entry) if !entry.children.is_empty() => {
                        remove(members.of(name), value, &entry.children)
                    }
                    _ => value.clone(),
                };
                out.insert(name.clone(), retained);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        kind @ (MergeType::Set | MergeType::Keyed(_)) => {
            let item_type = match kind {
                MergeType::Keyed(list) => list.element().map_or(Type::Deduced, Type::Known),
                _ => Type::Deduced,
            };
            let mut out = Vec::new();
            for item in as_list(Some(value)).into_iter().flatten() {
                let element = item_element(kind, item).ok();
                match element.and_then(|e| set.entry(&e)) {
                    Some(entry) if entry.member => {}
                    Some(entry) if !entry.children.is_empty() => {
                        out.push(remove(item_type, item, &entry.children));
                    }
                    _ => out.push(item.clone()),
                }
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
    }
}

/// Drops null fields of structs: they are equal to absent ones.
pub(super) fn without_nulls(ty: Type<'_>, value: &mut Value) {
    let Type::Known(schema) = ty else {
        return;
    };
    match value {
        Value::Object(map) if schema.shape() == Shape::Object => {
            map.retain(|_, v| !v.is_null());
            for (name, value) in map {
                if let Some(field) = schema.field(name) {
                    without_nulls(Type::Known(field), value);
                }
            }
        }
        Value::Object(map) if schema.shape() == Shape::Map => {
            let element = schema.element().map_or(Type::Deduced, Type::Known);
            map.values_mut().for_each(|v| without_nulls(element, v));
        }
        Value::Array(items) => {
            let element = schema.element().map_or(Type::Deduced, Type::Known);
            items.iter_mut().for_each(|v| without_nulls(element, v));
        }
        _ => {}
    }
}

/// Limit of errors reported for an applied object.
const MAX_ERRORS: usize = 1000;

/// Errors of an applied object: unknown fields, wrong types, items without keys, duplicates.
pub(super) fn validate(ty: Type<'_>, value: &Value) -> Option<String> {
    let mut errors = Vec::new();
    check(ty, value, &mut String::new(), &mut errors);
    match errors.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn check(ty: Type<'_>, value: &Value, path: &mut String, errors: &mut Vec<String>) {
    let Type::Known(schema) = ty else {
        return;
    };
    let mut fail = |path: &str, text: String| {
        errors.push(if path.is_empty() { text } else { format!("{path}: {text}") });
    };
    if value.is_null() {
        return;
    }
    let shown = |value: &Value| format!("&{{{}}}", show_plain(value));
    match schema.shape() {
        Shape::Any => {}
        Shape::Object | Shape::Map => {
            let Value::Object(map) = value else {
                return fail(path, format!("expected map, got {}", shown(value)));
            };
            let members = match schema.shape() {
                Shape::Object => Members::Struct(schema),
                _ => Members::Every(schema.element().map_or(Type::Deduced, Type::Known)),
            };
            for (name, value) in map {
                let length = path.len();
                path.push('.');
                path.push_str(name);
                let undeclared =
                    schema.shape() == Shape::Object && !members.declares(name) && !schema.preserves_unknown();
                if undeclared {
                    errors.push(format!("{path}: field not declared in schema"));
                } else {
                    check(members.of(name), value, path, errors);
                }
                path.truncate(length);
                if undeclared {
                    return;
                }
            }
        }
        Shape::List => {
            let Value::Array(items) = value else {
                return fail(path, format!("expected list, got {}", shown(value)));
            };
            check_items(ty, items, path, errors);
        }
        Shape::String | Shape::Bytes => {
            if !value.is_string() {
                let text = as_source(value);
                fail(path, format!("expected string, got &value.valueUnstructured{{Value:{text}}}"));
            }
        }
        Shape::Int32 | Shape::Int64 | Shape::Number => {
            if !value.is_number() {
                fail(path, format!("expected numeric (int or float), got {}", type_name(value)));
            }
        }
        Shape::Boolean => {
            if !value.is_boolean() {
                fail(path, format!("expected boolean, got {}", shown(value)));
            }
        }
        Shape::Quantity | Shape::IntOrString | Shape::Time | Shape::MicroTime | Shape::Duration => {
            if value.is_object() || value.is_array() {
                fail(path, format!("expected any scalar, got {}", shown(value)));
            }
        }
    }
}

/// Formats a value as Go source.
fn as_source(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => show_str(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(as_source).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let fields: Vec<String> =
                map.iter().map(|(name, value)| format!("{}:{}", show_str(name), as_source(value))).collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
        _ => "float64",
    }
}

fn check_items(ty: Type<'_>, items: &[Value], path: &mut String, errors: &mut Vec<String>) {
    let Type::Known(schema) = ty else {
        return;
    };
    let kind = ty.kind(None);
    let item_type = schema.element().map_or(Type::Deduced, Type::Known);
    let mut seen: BTreeSet<PathElement> = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        let element = match kind {
            MergeType::Set | MergeType::Keyed(_) => match item_element(kind, item) {
                Ok(element) => element,
                Err(text) => {
                    errors.push(format!("{path}: element {i}: {text}"));
                    return;
                }
            },
            _ => PathElement::Index(i64::try_from(i).unwrap_or(i64::MAX)),
        };
        if errors.len() >= MAX_ERRORS {
            return;
        }
        let shown = element.to_string();
        if !seen.insert(element) {
            errors.push(format!("{path}: duplicate entries for key {shown}"));
        }
        let length = path.len();
        path.push_str(&shown);
        check(item_type, item, path, errors);
        path.truncate(length);
    }
}
