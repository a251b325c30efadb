//! Lists in strategic merge patches: by merge key, or as sets of scalars; with their order.

use super::{DIRECTIVE, SET_ORDER, Type, bad_type, internal, merge_map};
use crate::patch::{PatchError, show_plain};
use serde_json::{Map, Value};

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
            original.retain(|v| !patch.contains(v));
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
    for value in patch {
        let Value::Object(fields) = value else {
            return internal(bad_type("map[string]interface {}", &value));
        };
        let Some(key) = fields.get(merge_key) else {
            return internal(no_merge_key(&fields, merge_key));
        };
        match position(original, merge_key, key)? {
            Some(at) => {
                if let Some(Value::Object(current)) = original.get_mut(at) {
                    merge_map(current, fields, item)?;
                }
            }
            None => original.push(Value::Object(fields)),
        }
    }
    *original = order(std::mem::take(original), &wanted, &before, merge_key, true)?;
    Ok(())
}

/// Whether the lists hold maps; items must all be of one kind.
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

/// Carries out `$patch` items; what is left of the patch is merged. `replace` empties the original.
fn special_items(
    original: &mut Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
) -> Result<Vec<Value>, PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
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
                original.retain(|v| v.get(merge_key) != Some(key));
            }
            Some("replace") => replace = true,
            Some("merge") => return internal("merging lists cannot yet be specified in the patch"),
            _ => {
                let shown = show_plain(&value);
                return internal(format!("unknown patch type: {} in map: {shown}", show_plain(directive)));
            }
        }
    }
    if replace {
        *original = std::mem::take(&mut rest);
    }
    Ok(rest)
}

/// Each scalar once; a duplicate's place is taken by the last item, as Kubernetes does it.
fn without_duplicates(mut items: Vec<Value>) -> Vec<Value> {
    let mut i = 0;
    while i < items.len() {
        let mut j = i + 1;
        while j < items.len() {
            if items[i] == items[j] {
                items.swap_remove(j);
            } else {
                j += 1;
            }
        }
        i += 1;
    }
    items
}

/// Patched items in the patch's order, the server's other items in theirs, woven together so that the server's
/// relative order holds wherever both are known to it.
pub(super) fn order(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    merge_key: &str,
    maps: bool,
) -> Result<Vec<Value>, PatchError> {
    let identity = |value: &Value| if maps { value.get(merge_key).cloned() } else { Some(value.clone()) };
    if maps {
        for value in merged.iter().chain(patch_order).chain(server_order) {
            match value {
                Value::Object(fields) if fields.contains_key(merge_key) => {}
                Value::Object(fields) => return internal(no_merge_key(fields, merge_key)),
                other => return internal(bad_type("map[string]interface {}", other)),
            }
        }
    }
    let places = |list: &[Value]| -> Vec<Option<Value>> { list.iter().map(identity).collect() };
    let (patch_places, server_places) = (places(patch_order), places(server_order));
    let place = |places: &[Option<Value>], value: &Value| {
        let wanted = identity(value);
        places.iter().position(|p| *p == wanted)
    };
    let (mut patched, mut server_only) = (Vec::new(), Vec::new());
    for value in merged {
        let server_place = place(&server_places, &value);
        match place(&patch_places, &value) {
            Some(at) => patched.push((at, server_place, value)),
            None => server_only.push((server_place, value)),
        }
    }
    patched.sort_by_key(|(at, _, _)| *at);
    server_only.sort_by_key(|(at, _)| at.unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(patched.len() + server_only.len());
    let mut left = server_only.into_iter().peekable();
    for (_, right_place, value) in patched {
        while let (Some((Some(left_place), _)), Some(right_place)) = (left.peek(), right_place) {
            if *left_place >= right_place {
                break;
            }
            out.extend(left.next().map(|(_, v)| v));
        }
        out.push(value);
    }
    out.extend(left.map(|(_, v)| v));
    Ok(out)
}

/// The patched items must come in the order that `$setElementOrder` gives.
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
    let mut places = order.iter();
    'items: for value in &wanted {
        for place in places.by_ref() {
            if key(value)? == key(place)? {
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

fn position(items: &[Value], merge_key: &str, key: &Value) -> Result<Option<usize>, PatchError> {
    for (i, value) in items.iter().enumerate() {
        match value {
            Value::Object(fields) if fields.get(merge_key) == Some(key) => return Ok(Some(i)),
            Value::Object(_) => {}
            _ => return internal(format!("value for key {i} is not a map")),
        }
    }
    Ok(None)
}

fn no_merge_key(fields: &Map<String, Value>, merge_key: &str) -> String {
    let shown = show_plain(&Value::Object(fields.clone()));
    format!("map: {shown} does not contain declared merge key: {merge_key}")
}
