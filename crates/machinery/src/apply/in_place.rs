//! Updates stored managedFields without decoding them: most writes change few fields of few managers.

use super::managed::{Identity, MAX_UPDATERS};
use super::path::PathElement;
use super::set::{Entry, FieldSet};
use super::strip::STRIPPED;
use crate::map;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The entries of the set that may have counterparts in the fields. With many managers, each has few fields.
fn counterparts<'s>(
    fields: &Map<String, Value>,
    set: &'s FieldSet,
) -> impl Iterator<Item = &'s Entry> + use<'s> {
    let few = (fields.len() < set.entries.len() / 8).then(|| {
        let elements = fields.keys().filter_map(|key| PathElement::parse(key).ok().flatten());
        elements.filter_map(|element| set.entry(&element)).collect::<Vec<_>>()
    });
    let all = if few.is_some() { [].iter() } else { set.entries.iter() };
    few.into_iter().flatten().chain(all)
}

/// Reports whether the fields of an entry and the set have a path in common.
fn overlaps(fields: &Map<String, Value>, set: &FieldSet) -> bool {
    counterparts(fields, set).any(|entry| match fields.get(&entry.element.to_key()) {
        Some(Value::Object(below)) => (entry.member && is_member(below)) || overlaps(below, &entry.children),
        _ => false,
    })
}

/// A node is in the set if it is marked so, or if nothing is below it.
fn is_member(node: &Map<String, Value>) -> bool {
    node.is_empty() || node.contains_key(".")
}

/// Removes the paths of the set from the fields.
fn subtract(fields: &mut Map<String, Value>, set: &FieldSet) {
    for entry in counterparts(fields, set) {
        let key = entry.element.to_key();
        let Some(Value::Object(node)) = fields.get_mut(&key) else {
            continue;
        };
        let member = is_member(node) && !entry.member;
        node.remove(".");
        subtract(node, &entry.children);
        if !node.is_empty() {
            if member {
                node.insert(".".to_owned(), Value::Object(Map::new()));
            }
        } else if !member {
            fields.remove(&key);
        }
    }
}

/// Adds the paths of the set to the fields.
fn add(fields: &mut Map<String, Value>, set: &FieldSet) {
    for entry in &set.entries {
        let (old_member, node) = match fields.entry(entry.element.to_key()) {
            serde_json::map::Entry::Vacant(vacant) => (false, vacant.insert(Value::Object(Map::new()))),
            serde_json::map::Entry::Occupied(vacant) => {
                let node = vacant.into_mut();
                (node.as_object().is_some_and(is_member), node)
            }
        };
        let Value::Object(node) = node else {
            continue;
        };
        node.remove(".");
        add(node, &entry.children);
        if (old_member || entry.member) && !node.is_empty() {
            node.insert(".".to_owned(), Value::Object(Map::new()));
        }
    }
}

fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
    map::of(entry, field).and_then(Value::as_str).unwrap_or("")
}

fn is_own(entry: &Value, identity: &Identity) -> bool {
    text(entry, "manager") == identity.manager
        && text(entry, "operation") == "Update"
        && text(entry, "apiVersion") == identity.api_version
        && text(entry, "subresource") == identity.subresource
}

/// Reports whether a change by this manager can be recorded in place, without exceeding the limit of managers.
pub(super) fn has_capacity(entries: &[Value], identity: &Identity) -> bool {
    let updaters = entries.iter().filter(|e| text(e, "operation") == "Update").count();
    updaters < MAX_UPDATERS
        || (updaters == MAX_UPDATERS && entries.iter().any(|entry| is_own(entry, identity)))
}

/// Records a change in stored entries: all lose the changed and removed paths, the manager gains the changed ones.
pub(super) fn record(
    entries: &mut Vec<Value>,
    changed: FieldSet,
    removed: FieldSet,
    identity: &Identity,
    now: &str,
) {
    let has_unowned = changed.intersects(&STRIPPED);
    let gained =
        if has_unowned { Cow::Owned(changed.difference(&STRIPPED)) } else { Cow::Borrowed(&changed) };
    let lost = if removed.is_empty() { Cow::Borrowed(&changed) } else { Cow::Owned(changed.union(&removed)) };
    let is_own = |entry: &Value| is_own(entry, identity);
    entries.retain_mut(|entry| {
        let own = is_own(entry) && !gained.is_empty();
        let Some(Value::Object(fields)) = entry.get_mut("fieldsV1") else {
            return own;
        };
        if overlaps(fields, &lost) {
            subtract(fields, &lost);
        }
        own || !fields.is_empty()
    });
    if gained.is_empty() {
        return;
    }
    match entries.iter().position(is_own) {
        Some(at) => {
            if let Value::Object(entry) = &mut entries[at] {
                let fields = entry.entry("fieldsV1").or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(fields) = fields {
                    add(fields, &gained);
                }
                entry.insert("time".to_owned(), Value::from(now));
            }
        }
        None => entries.push(identity.entry(&identity.api_version, gained.to_fields_v1(), Some(now))),
    }
    entries.sort_by(|a, b| {
        let applies = text(a, "operation").cmp(text(b, "operation"));
        ["time", "manager", "apiVersion", "subresource"]
            .iter()
            .fold(applies, |order, field| order.then_with(|| text(a, field).cmp(text(b, field))))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_set() -> impl Strategy<Value = FieldSet> {
        let element = "[abc]".prop_map(|n| PathElement::field(&n));
        prop::collection::vec(prop::collection::vec(element, 1..4), 0..8).prop_map(|paths| {
            let mut set = FieldSet::default();
            for path in paths {
                set.insert(&path);
            }
            set
        })
    }

    proptest! {
        #[test]
        fn in_place_few_fields_of_large_set_equal_set_operations(a in any_set(), b in any_set()) {
            let mut large = b.clone();
            for name in 0..100 {
                large.insert(&[PathElement::field(&format!("z{name}"))]);
            }
            let Value::Object(fields) = a.to_fields_v1() else { unreachable!("sets are maps") };
            prop_assert_eq!(overlaps(&fields, &large), a.intersects(&b));
            let mut difference = fields;
            subtract(&mut difference, &large);
            prop_assert_eq!(Value::Object(difference), a.difference(&b).to_fields_v1());
        }

        #[test]
        fn in_place_updates_equal_set_operations(a in any_set(), b in any_set()) {
            let Value::Object(fields) = a.to_fields_v1() else { unreachable!("sets are maps") };
            prop_assert_eq!(overlaps(&fields, &b), a.intersects(&b));
            let mut difference = fields.clone();
            subtract(&mut difference, &b);
            prop_assert_eq!(Value::Object(difference), a.difference(&b).to_fields_v1());
            let mut union = fields;
            add(&mut union, &b);
            prop_assert_eq!(Value::Object(union), a.union(&b).to_fields_v1());
        }
    }
}
