//! Lists in strategic merge patches: by merge key, or as sets of scalars; with their order.

use super::{DIRECTIVE, SET_ORDER, Type, bad_type, internal, merge_map};
use crate::patch::{PatchError, show_plain};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Merges `patch` into `original` by `merge_key` (maps) or as a set (scalars).
pub(super) fn merge(
    original: &mut Vec<Value>,
    patch: Vec<Value>,
    item: Type<'_>,
    merge_key: &str,
    deletes: bool,
) -> Result<(), PatchError> {
    if original.is_empty() && patch.is_empty() {
        return Ok(());
    }
    if !of_maps(original, &patch)? {
        if deletes {
            let deleted: HashSet<String> = patch.iter().map(text).collect();
            original.retain(|value| !deleted.contains(&text(value)));
            return Ok(());
        }
        let before = original.clone();
        let mut merged = std::mem::take(original);
        merged.extend(patch.iter().cloned());
        let merged = without_duplicates(merged);
        *original = order(merged, &patch, &before, "", false)?;
        return Ok(());
    }
    if merge_key.is_empty() {
        return internal("cannot merge lists without merge key for struct");
    }
    let patch = special_items(original, patch, merge_key)?;
    let before = original.clone();
    let wanted = patch.clone();
    let mut positions = Positions::of(original.iter().map(|value| value.get(merge_key)));
    for value in patch {
        let Value::Object(fields) = value else {
            return internal(bad_type("map[string]interface {}", &value));
        };
        let Some(key) = fields.get(merge_key) else {
            return internal(no_merge_key(&fields, merge_key));
        };
        let key = key.clone();
        match positions.get(&key) {
            Some(at) => {
                if let Some(Value::Object(current)) = original.get_mut(at) {
                    merge_map(current, fields, item)?;
                    // A null removes the key itself.
                    if current.get(merge_key) != Some(&key) {
                        positions.remove(&key);
                    }
                }
            }
            None => {
                positions.add(&key, original.len());
                original.push(Value::Object(fields));
            }
        }
    }
    *original = order(std::mem::take(original), &wanted, &before, merge_key, true)?;
    Ok(())
}

/// Reports whether the lists hold maps; all items must be of one type.
pub(super) fn of_maps(first: &[Value], second: &[Value]) -> Result<bool, PatchError> {
    let kind = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(n) if n.is_f64() => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    };
    let mut items = first.iter().chain(second);
    let Some(head) = items.next() else {
        return internal("no elements in any of the given slices");
    };
    if head.is_array() {
        return Err(PatchError::Unprocessable("lists of lists are not supported".to_owned()));
    }
    if items.any(|v| kind(v) != kind(head)) {
        let list = |items: &[Value]| show_plain(&Value::Array(items.to_vec()));
        let shown = format!("[{} {}]", list(first), list(second));
        return internal(format!("list element types are not identical: {shown}"));
    }
    Ok(head.is_object())
}

/// Applies `$patch` items; returns the rest of the patch, to be merged. `replace` clears the original.
fn special_items(
    original: &mut Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
) -> Result<Vec<Value>, PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut deleted = HashSet::new();
    for value in patch {
        let Some(directive) = value.get(DIRECTIVE) else {
            rest.push(value);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let Some(key) = value.get(merge_key) else {
                    return internal(match &value {
                        Value::Object(fields) => no_merge_key(fields, merge_key),
                        other => bad_type("map[string]interface {}", other),
                    });
                };
                deleted.insert(text(key));
            }
            Some("replace") => replace = true,
            Some("merge") => return internal("merging lists cannot yet be specified in the patch"),
            _ => {
                let shown = show_plain(&value);
                return internal(format!("unknown patch type: {} in map: {shown}", show_plain(directive)));
            }
        }
    }
    if !deleted.is_empty() {
        original.retain(|value| value.get(merge_key).is_none_or(|key| !deleted.contains(&text(key))));
    }
    if replace {
        *original = std::mem::take(&mut rest);
    }
    Ok(rest)
}

/// Each scalar once; a duplicate is replaced by the last item, as in Kubernetes.
pub(super) fn without_duplicates(mut items: Vec<Value>) -> Vec<Value> {
    let mut texts: Vec<Rc<str>> = items.iter().map(|value| text(value).into()).collect();
    let mut positions: HashMap<Rc<str>, BTreeSet<usize>> = HashMap::new();
    for (at, text) in texts.iter().enumerate() {
        positions.entry(text.clone()).or_default().insert(at);
    }
    let mut at = 0;
    while at < items.len() {
        let same = texts[at].clone();
        while let Some(duplicate) = positions.get(&same).and_then(|set| set.range(at + 1..).next().copied()) {
            let last = items.len() - 1;
            items.swap_remove(duplicate);
            texts.swap_remove(duplicate);
            positions.entry(same.clone()).or_default().remove(&duplicate);
            if duplicate < last {
                let moved = positions.entry(texts[duplicate].clone()).or_default();
                moved.remove(&last);
                moved.insert(duplicate);
            }
        }
        at += 1;
    }
    items
}

/// Text used to compare values.
fn text(value: &Value) -> String {
    value.to_string()
}

/// Positions of values in a list; of several equal ones the first.
struct Positions(HashMap<String, usize>);

impl Positions {
    fn of<'a>(values: impl Iterator<Item = Option<&'a Value>>) -> Self {
        let mut positions = Self(HashMap::new());
        for (at, value) in values.enumerate() {
            if let Some(value) = value {
                positions.add(value, at);
            }
        }
        positions
    }

    fn add(&mut self, value: &Value, at: usize) {
        self.0.entry(text(value)).or_insert(at);
    }

    fn remove(&mut self, value: &Value) {
        self.0.remove(&text(value));
    }

    fn get(&self, value: &Value) -> Option<usize> {
        self.0.get(&text(value)).copied()
    }
}

/// Patched items in the patch's order, the server's other items in theirs, interleaved so that the server's relative
/// order holds for all items that it has.
pub(super) fn order(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    merge_key: &str,
    maps: bool,
) -> Result<Vec<Value>, PatchError> {
    if maps {
        for value in merged.iter().chain(patch_order).chain(server_order) {
            match value {
                Value::Object(fields) if fields.contains_key(merge_key) => {}
                Value::Object(fields) => return internal(no_merge_key(fields, merge_key)),
                other => return internal(bad_type("map[string]interface {}", other)),
            }
        }
    }
    let positions = |list: &[Value]| Positions::of(list.iter().map(|value| identity(value, merge_key, maps)));
    let (patch_positions, server_positions) = (positions(patch_order), positions(server_order));
    let position = |positions: &Positions, value: &Value| {
        identity(value, merge_key, maps).and_then(|identity| positions.get(identity))
    };
    let (mut patched, mut server_only) = (Vec::new(), Vec::new());
    for value in merged {
        let server_position = position(&server_positions, &value);
        match position(&patch_positions, &value) {
            Some(at) => patched.push((at, server_position, value)),
            None => server_only.push((server_position, value)),
        }
    }
    patched.sort_by_key(|(at, _, _)| *at);
    server_only.sort_by_key(|(at, _)| at.unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(patched.len() + server_only.len());
    let mut left = server_only.into_iter().peekable();
    for (_, right_position, value) in patched {
        while let (Some((Some(left_position), _)), Some(right_position)) = (left.peek(), right_position) {
            if *left_position >= right_position {
                break;
            }
            out.extend(left.next().map(|(_, v)| v));
        }
        out.push(value);
    }
    out.extend(left.map(|(_, v)| v));
    Ok(out)
}

/// Identity of an item: its merge key, or itself.
fn identity<'a>(value: &'a Value, merge_key: &str, maps: bool) -> Option<&'a Value> {
    if maps { value.get(merge_key) } else { Some(value) }
}

/// Checks that the patched items are in the order of `$setElementOrder`.
pub(super) fn check_order(patch: &[Value], order: &[Value], merge_key: &str) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let by_key = !merge_key.is_empty();
    let mut wanted = Vec::with_capacity(patch.len());
    for value in patch {
        if by_key && !value.is_object() {
            return internal(bad_type("map[string]interface {}", value));
        }
        if value.get(DIRECTIVE).is_none() {
            wanted.push(value);
        }
    }
    let key = |value: &Value| -> Result<Value, PatchError> {
        match value {
            _ if !by_key => Ok(value.clone()),
            Value::Object(fields) => match fields.get(merge_key) {
                Some(key) => Ok(key.clone()),
                None => internal(no_merge_key(fields, merge_key)),
            },
            other => internal(bad_type("map[string]interface {}", other)),
        }
    };
    let mut positions = order.iter();
    'items: for value in &wanted {
        for position in positions.by_ref() {
            if key(value)? == key(position)? {
                continue 'items;
            }
        }
        let list = |items: &[Value]| show_plain(&Value::Array(items.to_vec()));
        return internal(format!(
            "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
            list(patch),
            list(order)
        ));
    }
    Ok(())
}

fn no_merge_key(fields: &Map<String, Value>, merge_key: &str) -> String {
    let shown = show_plain(&Value::Object(fields.clone()));
    format!("map: {shown} does not contain declared merge key: {merge_key}")
}
