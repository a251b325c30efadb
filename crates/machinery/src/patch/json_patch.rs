//! JSON patch (RFC 6902), with the deviations of Kubernetes' library: negative indices count from the end, `replace`
//! adds a missing member, a missing `value` is null.

use super::{PatchError, depth};
use crate::codec::budget::{Budget, footprint};
use crate::codec::typed::kind_of;
use serde_json::Value;

/// Limit of operations in one patch.
const MAX_OPERATIONS: usize = 10_000;
/// Limit of the bytes that `copy` adds in total: the size of a request body.
const MAX_COPIED: usize = 3 * 1024 * 1024;
/// Memory limit of copies: text of that size as maps of many small values takes more.
const MAX_COPIED_MEMORY: usize = 32 << 20;
/// Limit of list items that insertions and removals move in total.
const MAX_MOVED: usize = 100_000_000;
/// Nesting limit of patched objects, which all code that walks them relies on.
const MAX_DEPTH: usize = 256;

/// Applies the operations of `patch` in order.
///
/// ```
/// use machinery::patch::json_patch;
/// use serde_json::json;
///
/// let mut object = json!({"spec": {"replicas": 1}});
/// let patch = json!([{"op": "test", "path": "/spec/replicas", "value": 1},
///                    {"op": "replace", "path": "/spec/replicas", "value": 3}]);
/// json_patch::apply(&mut object, &patch).expect("applies");
/// assert_eq!(object, json!({"spec": {"replicas": 3}}));
/// ```
pub fn apply(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = operations(patch, "jsonpatch.Patch", "jsonpatch.Operation", "")?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut work = Work { copied: 0, memory: Budget::bytes(MAX_COPIED_MEMORY), moved: 0 };
    for operation in operations {
        apply_operation(object, operation, &mut work).map_err(PatchError::Unprocessable)?;
        if work.moved > MAX_MOVED {
            let why = format!("a JSON patch may move at most {MAX_MOVED} items of lists");
            return Err(PatchError::TooLarge(why));
        }
    }
    Ok(())
}

/// Work done by the operations of one patch.
struct Work {
    /// Bytes of JSON copied.
    copied: usize,
    /// Remaining memory for copies.
    memory: Budget,
    /// List items moved.
    moved: usize,
}

/// Errors of strict or warning field validation in the patch itself: types of members, unknown members.
pub fn validate(patch: &Value) -> Result<Vec<String>, PatchError> {
    let prefix = "error decoding patch: ";
    let operations = operations(patch, "[]handlers.jsonPatchOp", "handlers.jsonPatchOp", prefix)?;
    let mut errors = Vec::new();
    for (i, operation) in operations.iter().enumerate() {
        for (member, value) in operation.as_object().into_iter().flatten() {
            match member.as_str() {
                "op" | "path" | "from" if !value.is_string() && !value.is_null() => {
                    return Err(PatchError::BadRequest(format!(
                        "{prefix}json: cannot unmarshal {} into Go struct field jsonPatchOp.{member} of type string",
                        kind_of(value)
                    )));
                }
                "op" | "path" | "from" | "value" => {}
                _ => errors.push(format!("json patch unknown field \"[{i}].{member}\"")),
            }
        }
    }
    Ok(errors)
}

fn operations<'a>(patch: &'a Value, list: &str, item: &str, prefix: &str) -> Result<&'a [Value], PatchError> {
    let refuse = |value: &Value, kind: &str| {
        let what = kind_of(value);
        PatchError::BadRequest(format!("{prefix}json: cannot unmarshal {what} into Go value of type {kind}"))
    };
    let operations = match patch {
        Value::Null => &[],
        Value::Array(operations) => operations.as_slice(),
        other => return Err(refuse(other, list)),
    };
    match operations.iter().find(|o| !o.is_object() && !o.is_null()) {
        Some(other) => Err(refuse(other, item)),
        None => Ok(operations),
    }
}

fn apply_operation(object: &mut Value, operation: &Value, work: &mut Work) -> Result<(), String> {
    let kind = operation.get("op").and_then(Value::as_str).unwrap_or("unknown");
    let pointer = |member: &str| {
        operation.get(member).and_then(Value::as_str).ok_or_else(|| match member {
            "from" => "operation, missing from field: missing value".to_owned(),
            _ => "operation missing path field: missing value".to_owned(),
        })
    };
    let failed = |side: &str, e: String| format!("{kind} operation failed to decode {side}: {e}");
    let path = || pointer("path").map_err(|e| failed("path", e));
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    match kind {
        "add" => add(object, path()?, value(), kind, work),
        "remove" => remove(object, path()?, kind, work).map(drop),
        "replace" => replace(object, path()?, operation.get("value")),
        "test" => test(object, path()?, operation.get("value")),
        "move" => {
            let from = pointer("from").map_err(|e| failed("from", e))?;
            let value = remove(object, from, kind, work)?;
            add(object, path()?, value, kind, work)
        }
        "copy" => {
            let from = pointer("from").map_err(|e| failed("from", e))?;
            let (container, key) = find(object, from).ok_or_else(|| missing(kind, "from path", from))?;
            let found = get(container, &key).map_err(|e| format!("error in copy for from: '{from}': {e}"))?;
            let value = found.unwrap_or(&Value::Null);
            work.memory.spend(footprint(value)).map_err(|_| {
                format!(
                    "Unable to complete the copy, copies take more than {MAX_COPIED_MEMORY} bytes of memory"
                )
            })?;
            let value = value.clone();
            let path = path()?;
            work.copied += serde_json::to_string(&value).map_or(0, |text| text.len());
            if work.copied > MAX_COPIED {
                return Err(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {MAX_COPIED}",
                    work.copied
                ));
            }
            add(object, path, value, kind, work)
        }
        other => Err(format!("Unexpected kind: {other}")),
    }
}

fn missing(kind: &str, what: &str, path: &str) -> String {
    format!("{kind} operation does not apply: doc is missing {what}: {path}: missing value")
}

/// The object or list that contains the target of a pointer, and the last token. Text before the first slash is
/// ignored, so `data/a` is `/a`.
fn find<'a>(object: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let (_, rest) = path.split_once('/')?;
    let (parents, last) = rest.rsplit_once('/').map_or((None, rest), |(p, l)| (Some(p), l));
    let mut current = object;
    for token in parents.into_iter().flat_map(|p| p.split('/')) {
        let token = decode(token);
        current = match current {
            Value::Object(map) => map.get_mut(&token)?,
            Value::Array(items) => {
                let index = existing_index(&token, items.len()).ok()?;
                &mut items[index]
            }
            _ => return None,
        };
    }
    (current.is_object() || current.is_array()).then(|| (current, decode(last)))
}

fn decode(token: &str) -> String {
    if !token.contains('~') {
        return token.to_owned();
    }
    let mut out = String::with_capacity(token.len());
    let mut rest = token;
    while let Some(at) = rest.find('~') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(tail) = rest.strip_prefix("~1") {
            out.push('/');
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix("~0") {
            out.push('~');
            rest = tail;
        } else {
            out.push('~');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

fn parse_index(token: &str) -> Result<i64, String> {
    token.parse().map_err(|_| format!("strconv.Atoi: parsing {token:?}: invalid syntax"))
}

/// An index into `0..length`; negative ones count from the end.
fn index_below(token: &str, length: usize) -> Result<usize, String> {
    let index = parse_index(token)?;
    let size = i64::try_from(length).unwrap_or(i64::MAX);
    let from_start = if index < 0 { index.saturating_add(size) } else { index };
    if (0..size).contains(&from_start) {
        Ok(usize::try_from(from_start).unwrap_or(0))
    } else {
        Err(format!("Unable to access invalid index: {index}: invalid index referenced"))
    }
}

fn existing_index(token: &str, length: usize) -> Result<usize, String> {
    index_below(token, length)
}

/// A missing member of an object is `None`, like null; an index outside a list is an error.
fn get<'a>(container: &'a Value, key: &str) -> Result<Option<&'a Value>, String> {
    match container {
        Value::Array(items) => Ok(Some(&items[existing_index(key, items.len())?])),
        other => Ok(other.get(key)),
    }
}

fn add(object: &mut Value, path: &str, value: Value, kind: &str, work: &mut Work) -> Result<(), String> {
    if path.split('/').count() + depth(&value) > MAX_DEPTH {
        return Err(format!("error in {kind} for path: the result would nest deeper than {MAX_DEPTH}"));
    }
    let what = if kind == "add" { "path" } else { "destination path" };
    let (container, key) = find(object, path).ok_or_else(|| missing(kind, what, path))?;
    match container {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let index = index_below(&key, items.len() + 1)
                .map_err(|e| format!("error in {kind} for path: '{path}': {e}"))?;
            work.moved += items.len() - index;
            items.insert(index, value);
        }
        Value::Object(map) => {
            map.insert(key, value);
        }
        _ => return Err(missing(kind, what, path)),
    }
    Ok(())
}

fn remove(object: &mut Value, path: &str, kind: &str, work: &mut Work) -> Result<Value, String> {
    let what = if kind == "move" { "from path" } else { "path" };
    let (container, key) = find(object, path).ok_or_else(|| missing(kind, what, path))?;
    let failed = |e: String| format!("error in {kind} for path: '{path}': {e}");
    match container {
        Value::Array(items) => {
            let index = existing_index(&key, items.len()).map_err(failed)?;
            work.moved += items.len() - index;
            Ok(items.remove(index))
        }
        Value::Object(map) => map
            .remove(&key)
            .ok_or_else(|| failed(format!("Unable to remove nonexistent key: {key}: missing value"))),
        _ => Err(missing(kind, what, path)),
    }
}

fn replace(object: &mut Value, path: &str, value: Option<&Value>) -> Result<(), String> {
    if path.is_empty() {
        return match value {
            Some(new @ (Value::Object(_) | Value::Array(_))) => {
                *object = new.clone();
                Ok(())
            }
            _ => Err("replace operation value must be object or array".to_owned()),
        };
    }
    let value = value.cloned().unwrap_or(Value::Null);
    if path.split('/').count() + depth(&value) > MAX_DEPTH {
        return Err(format!("error in replace for path: the result would nest deeper than {MAX_DEPTH}"));
    }
    let (container, key) = find(object, path).ok_or_else(|| missing("replace", "path", path))?;
    match container {
        Value::Array(items) => {
            let index = existing_index(&key, items.len()).map_err(|_| missing("replace", "key", path))?;
            items[index] = value;
        }
        Value::Object(map) => {
            map.insert(key, value);
        }
        _ => return Err(missing("replace", "path", path)),
    }
    Ok(())
}

fn test(object: &mut Value, path: &str, value: Option<&Value>) -> Result<(), String> {
    let wanted = value.unwrap_or(&Value::Null);
    let failed = || format!("testing value {path} failed: test failed");
    if path.is_empty() {
        return if object == wanted { Ok(()) } else { Err(failed()) };
    }
    let (container, key) = find(object, path)
        .ok_or_else(|| format!("test operation does not apply: is missing path: {path}: missing value"))?;
    let found = get(container, &key).map_err(|e| format!("error in test for path: '{path}': {e}"))?;
    if found.unwrap_or(&Value::Null) == wanted { Ok(()) } else { Err(failed()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn patched(object: &Value, patch: Value) -> Result<Value, PatchError> {
        let mut object = object.clone();
        apply(&mut object, &patch).map(|()| object)
    }

    #[test]
    fn copies_beyond_memory_budget_are_rejected() {
        // 8 bytes of text that take 700 bytes of memory each.
        let small = Value::Array(vec![json!({"a": 1}); 20_000]);
        let object = json!({"l": small});
        let copies = |count: usize| {
            let one = |at: usize| json!({"op": "copy", "from": "/l", "path": format!("/c{at}")});
            patched(&object, Value::Array((0..count).map(one).collect()))
        };
        assert!(copies(1).is_ok());
        assert!(matches!(copies(4), Err(PatchError::Unprocessable(why)) if why.contains("of memory")));
    }

    #[test]
    fn insertions_that_move_too_many_items_are_rejected() {
        let object = json!({"l": vec![Value::Null; 500_000]});
        let insert = json!({"op": "add", "path": "/l/0", "value": null});
        assert!(patched(&object, Value::Array(vec![insert.clone(); 10])).is_ok());
        let refused = patched(&object, Value::Array(vec![insert; 1000]));
        assert!(matches!(refused, Err(PatchError::TooLarge(_))), "{:?}", refused.err());
    }

    #[test]
    fn operations_change_objects() {
        let object = json!({"a": {"b": 1, "c/d": 2, "e~f": 3}, "l": [1, 2, 3], "n": null});
        for (patch, path, want) in [
            (json!([{"op": "add", "path": "/a/x", "value": 9}]), "/a/x", json!(9)),
            (json!([{"op": "add", "path": "/a/x"}]), "/a/x", json!(null)),
            (json!([{"op": "add", "path": "a/x", "value": 9}]), "/x", json!(9)),
            (json!([{"op": "remove", "path": "/a/c~1d"}]), "/a", json!({"b": 1, "e~f": 3})),
            (json!([{"op": "replace", "path": "/a/e~0f", "value": 4}]), "/a/e~0f", json!(4)),
            (json!([{"op": "replace", "path": "/a/new", "value": 4}]), "/a/new", json!(4)),
            (json!([{"op": "add", "path": "/l/-", "value": 4}]), "/l", json!([1, 2, 3, 4])),
            (json!([{"op": "add", "path": "/l/0", "value": 4}]), "/l", json!([4, 1, 2, 3])),
            (json!([{"op": "add", "path": "/l/-1", "value": 4}]), "/l", json!([1, 2, 3, 4])),
            (json!([{"op": "remove", "path": "/l/-1"}]), "/l", json!([1, 2])),
            (json!([{"op": "replace", "path": "/l/1", "value": 4}]), "/l", json!([1, 4, 3])),
            (json!([{"op": "move", "from": "/a/b", "path": "/l/1"}]), "/l", json!([1, 1, 2, 3])),
            (json!([{"op": "copy", "from": "/l", "path": "/a/l"}]), "/a/l", json!([1, 2, 3])),
            (json!([{"op": "copy", "from": "/a/zz", "path": "/a/l"}]), "/a/l", json!(null)),
            (json!([{"op": "test", "path": "/n"}]), "/n", json!(null)),
            (json!([{"op": "test", "path": "/zz", "value": null}]), "/n", json!(null)),
        ] {
            let got = patched(&object, patch.clone()).unwrap();
            assert_eq!(got.pointer(path), Some(&want), "{patch}");
        }
    }

    #[test]
    fn inapplicable_operations_are_errors() {
        let object = json!({"a": {"b": 1}, "l": [1]});
        for patch in [
            json!([{"op": "remove", "path": "/a/zz"}]),
            json!([{"op": "test", "path": "/a/b", "value": 2}]),
            json!([{"op": "add", "path": "/nope/deep/x", "value": 1}]),
            json!([{"op": "bogus", "path": "/a"}]),
            json!([{"op": "move", "path": "/a/q"}]),
            json!([{"op": "add", "path": "/l/99", "value": 1}]),
            json!([{"op": "add", "path": "/l/-3", "value": 1}]),
            json!([{"op": "add", "path": "", "value": 1}]),
            json!([{"op": "replace", "path": "", "value": 1}]),
            json!([{"op": "remove", "path": "/l/x"}]),
            json!([{"op": "replace", "path": "/l/1", "value": 1}]),
            json!([null]),
        ] {
            let error = patched(&object, patch.clone()).unwrap_err();
            assert!(matches!(error, PatchError::Unprocessable(_)), "{patch}: {error}");
        }
    }

    #[test]
    fn patch_limits_are_enforced() {
        let operation = json!({"op": "test", "path": "/a", "value": 1});
        let many = Value::Array(vec![operation; MAX_OPERATIONS + 1]);
        assert_eq!(
            patched(&json!({}), many).unwrap_err().to_string(),
            "The allowed maximum operations in a JSON patch is 10000, got 10001"
        );
        // Every copy nests the object in itself, one level deeper each time.
        let copies: Vec<Value> =
            (0..300).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/b"})).collect();
        assert!(patched(&json!({"a": {}}), Value::Array(copies)).is_err());
    }

    #[test]
    fn malformed_patch_reports_decoding_errors() {
        let refused = |patch| validate(&patch).unwrap_err().to_string();
        assert_eq!(
            refused(json!({"op": "add"})),
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        );
        assert_eq!(
            refused(json!([{"path": 1}])),
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.path of type string"
        );
        assert_eq!(
            validate(&json!([{"op": "add", "foo": 1}])).unwrap(),
            ["json patch unknown field \"[0].foo\""]
        );
    }

    proptest! {
        #[test]
        fn json_patch_of_any_value_never_panics(
            op in "(add|remove|replace|move|copy|test)",
            from in "(/?(a|b|l|0|1|-|-1|~1|~)){0,4}",
            path in "(/?(a|b|l|0|1|-|-1|~1|~)){0,4}",
        ) {
            let object = json!({"a": {"b": [1, {"a": 2}]}, "l": [[1], 2], "b": null});
            let _ = patched(&object, json!([{"op": op, "path": path, "from": from, "value": {"a": []}}]));
        }
    }
}
