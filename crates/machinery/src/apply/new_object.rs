//! Fields of a new object, directly in the form of managedFields. Its creator owns nearly all of them, so no
//! intermediate sets are built.

use super::compare::{Level, compare_at, skipped};
use super::reset::Reset;
use super::set::FieldSet;
use super::types::{Members, MergeType, Type, as_list, item_element, zero};
use serde_json::{Map, Value};

/// Fields owned by the creator of an object; `None` if a list has indistinguishable items.
pub(super) fn fields_of_new(ty: Type<'_>, new: &Value, reset: &Reset) -> Option<Map<String, Value>> {
    let excluded = match reset {
        Reset::Nothing => None,
        Reset::Exclude(excluded) => Some(excluded),
    };
    match (ty.kind(Some(new)), new) {
        // The previous object is an empty one: in it, fields that are always written had their zero values.
        (MergeType::Map(members), Value::Object(map)) => fields(members, map, true, Level::Root, excluded),
        _ => Some(Map::new()),
    }
}

/// The fields of a struct or map. `existed` means that it existed before, but empty.
fn fields(
    members: Members<'_>,
    map: &Map<String, Value>,
    existed: bool,
    level: Level,
    excluded: Option<&FieldSet>,
) -> Option<Map<String, Value>> {
    let mut out = Map::new();
    for (name, value) in map {
        let excluded = excluded.and_then(|set| set.field_entry(name));
        if skipped(level, name) || excluded.is_some_and(|entry| entry.member) {
            continue;
        }
        let excluded = excluded.map(|entry| &entry.children);
        let (ty, before) = match members {
            Members::Every(ty) => (ty, None),
            Members::Struct(schema) => match schema.field_decl(name) {
                None => (Type::Deduced, None),
                Some(field) => {
                    let before = if existed { zero(schema, field) } else { None };
                    (Type::Known(schema.of_field(field)), before)
                }
            },
        };
        let level = level.below(name);
        let (member, children) = match before {
            None => (true, children(ty, value, level, excluded)?),
            Some(before) => changed(ty, before, value, level, excluded)?,
        };
        put(&mut out, || field_key(name), member && level != Level::Metadata, children);
    }
    Some(out)
}

/// Fields below a new value.
fn children(
    ty: Type<'_>,
    value: &Value,
    level: Level,
    excluded: Option<&FieldSet>,
) -> Option<Map<String, Value>> {
    match (ty.kind(Some(value)), value) {
        (MergeType::Map(members), Value::Object(map)) => fields(members, map, false, level, excluded),
        (kind @ (MergeType::Set | MergeType::Keyed(_)), value) => items(kind, value),
        _ => Some(Map::new()),
    }
}

/// Compares a value with its previous zero value; returns whether it differs, and the fields below it.
fn changed(
    ty: Type<'_>,
    before: &Value,
    value: &Value,
    level: Level,
    excluded: Option<&FieldSet>,
) -> Option<(bool, Map<String, Value>)> {
    match (ty.kind(Some(before)), ty.kind(Some(value)), value) {
        (MergeType::Leaf, MergeType::Leaf, _) => return Some((before != value, Map::new())),
        (MergeType::Map(_), MergeType::Map(members), Value::Object(map)) if !map.is_empty() => {
            return Some((false, fields(members, map, before.is_object(), level, excluded)?));
        }
        (
            MergeType::Set | MergeType::Keyed(_),
            kind @ (MergeType::Set | MergeType::Keyed(_)),
            Value::Array(list),
        ) if !list.is_empty() && excluded.is_none() => {
            return Some((false, items(kind, value)?));
        }
        _ => {}
    }
    let (changed, comparison) = compare_at(ty, before, value, level);
    if comparison.broken {
        return None;
    }
    let mut below = comparison.modified.union(&comparison.added);
    if let Some(excluded) = excluded {
        below = below.recursive_difference(excluded);
    }
    match below.to_fields_v1() {
        Value::Object(below) => Some((changed, below)),
        _ => Some((changed, Map::new())),
    }
}

/// The items of a list; items with the same element are one, without fields below.
fn items(kind: MergeType<'_>, list: &Value) -> Option<Map<String, Value>> {
    let items = as_list(Some(list)).into_iter().flatten();
    let mut elements: Vec<_> =
        items.map(|item| Some((item_element(kind, item).ok()?, item))).collect::<Option<_>>()?;
    elements.sort_by(|a, b| a.0.cmp(&b.0));
    let ty = match kind {
        MergeType::Keyed(list) => list.element().map_or(Type::Deduced, Type::Known),
        _ => Type::Deduced,
    };
    let mut out = Map::new();
    let mut elements = elements.into_iter().peekable();
    while let Some((element, item)) = elements.next() {
        let mut alone = true;
        while elements.next_if(|(next, _)| *next == element).is_some() {
            alone = false;
        }
        let below = if alone { children(ty, item, Level::Inside, None)? } else { Map::new() };
        put(&mut out, || element.to_key(), true, below);
    }
    Some(out)
}

fn field_key(name: &str) -> String {
    let mut key = String::with_capacity(name.len() + 2);
    key.push_str("f:");
    key.push_str(name);
    key
}

/// Adds an entry, marked as a member itself (`.`) if there are fields below it.
fn put(
    out: &mut Map<String, Value>,
    key: impl FnOnce() -> String,
    member: bool,
    mut children: Map<String, Value>,
) {
    if children.is_empty() && !member {
        return;
    }
    if member && !children.is_empty() {
        children.insert(".".to_owned(), Value::Object(Map::new()));
    }
    out.insert(key(), Value::Object(children));
}
