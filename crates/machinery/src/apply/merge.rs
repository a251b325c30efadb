//! Merges an applied object into a live one.

use super::path::PathElement;
use super::types::{Members, MergeType, Type, as_list, as_map, item_element};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The live object with the applied one merged in. `None` if nothing is left.
pub(super) fn merge(ty: Type<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let kind = match (live, applied) {
        (_, None) => ty.kind(live),
        (Some(_), Some(Value::Null)) => ty.kind(live),
        _ => ty.kind(applied),
    };
    match kind {
        MergeType::Leaf => applied.or(live).cloned(),
        MergeType::Map(members) => {
            let (left, right) = (as_map(live), as_map(applied));
            if left.is_none_or(Map::is_empty) && right.is_none_or(Map::is_empty) {
                return applied.or(live).cloned();
            }
            let out = maps(members, left, right);
            (!out.is_empty()).then_some(Value::Object(out))
        }
        MergeType::Set | MergeType::Keyed(_) => {
            let (left, right) = (as_list(live), as_list(applied));
            if left.is_none_or(Vec::is_empty) && right.is_none_or(Vec::is_empty) {
                return applied.or(live).cloned();
            }
            let empty = Vec::new();
            let out = lists(kind, left.unwrap_or(&empty), right.unwrap_or(&empty));
            (!out.is_empty()).then_some(Value::Array(out))
        }
    }
}

fn maps(
    members: Members<'_>,
    live: Option<&Map<String, Value>>,
    applied: Option<&Map<String, Value>>,
) -> Map<String, Value> {
    let mut out = live.cloned().unwrap_or_default();
    for (name, new) in applied.into_iter().flatten() {
        let old = live.and_then(|m| m.get(name));
        match merge(members.of(name), old, Some(new)) {
            Some(value) => out.insert(name.clone(), value),
            None => out.remove(name),
        };
    }
    out
}

/// Applied items are in the applied order; other live items retain their position between them.
fn lists(kind: MergeType<'_>, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let item_type = match kind {
        MergeType::Keyed(list) => list.element().map_or(Type::Deduced, Type::Known),
        _ => Type::Deduced,
    };
    let index = |items: &[Value]| -> Vec<Option<PathElement>> {
        items.iter().map(|v| item_element(kind, v).ok()).collect()
    };
    let (left, right) = (index(live), index(applied));
    // First position and number of each element.
    let mut positions: BTreeMap<&PathElement, (usize, usize)> = BTreeMap::new();
    for (at, element) in left.iter().enumerate() {
        if let Some(element) = element {
            positions.entry(element).or_insert((at, 0)).1 += 1;
        }
    }
    let wanted: BTreeSet<&PathElement> = right.iter().flatten().collect();
    // A live item with a duplicate is not merged into: the applied one replaces both.
    let old_of = |element: &Option<PathElement>| match positions.get(element.as_ref()?)? {
        (at, 1) => Some(&live[*at]),
        _ => None,
    };
    let in_right: Vec<bool> =
        left.iter().map(|e| e.as_ref().is_some_and(|element| wanted.contains(element))).collect();
    let mut shared =
        right.iter().filter(|e| e.as_ref().is_some_and(|element| positions.contains_key(element)));
    let mut next_shared = shared.next();
    let mut merged: BTreeSet<&Option<PathElement>> = BTreeSet::new();
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            if left[l].is_some() && left[l] == right[r] {
                merged.insert(&left[l]);
                out.extend(merge(item_type, old_of(&left[l]), Some(&applied[r])));
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if in_right[l] && next_shared.is_some_and(|s| *s != left[l]) {
                // It occurs later in the applied order.
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            if !in_right[l] {
                out.push(live[l].clone());
                l += 1;
                continue;
            }
            if merged.contains(&left[l]) {
                l += 1;
            }
        }
        if r < right.len() {
            merged.insert(&right[r]);
            out.extend(merge(item_type, old_of(&right[r]), Some(&applied[r])));
            if next_shared == Some(&right[r]) {
                next_shared = shared.next();
            }
            r += 1;
        }
    }
    out
}
