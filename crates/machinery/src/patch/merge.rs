//! JSON merge patch (RFC 7386), with the deviations of Kubernetes' library.

use super::PatchError;
use serde_json::{Map, Value};

/// Merges `patch` into `object`.
///
/// ```
/// use machinery::patch::merge;
/// use serde_json::json;
///
/// let mut object = json!({"labels": {"a": "1", "b": "2"}});
/// merge::apply(&mut object, &json!({"labels": {"a": null, "c": "3"}}))?;
/// assert_eq!(object, json!({"labels": {"b": "2", "c": "3"}}));
/// # Ok::<(), machinery::patch::PatchError>(())
/// ```
pub fn apply(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let fields = match patch {
        Value::Object(fields) => fields,
        Value::Null => return Err(PatchError::BadRequest("Invalid JSON Patch".to_owned())),
        other => {
            let kind = match other {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "number",
            };
            return Err(PatchError::BadRequest(format!(
                "error decoding patch: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
            )));
        }
    };
    match object {
        Value::Object(target) => merge(target, fields),
        other => *other = without_nulls(patch),
    }
    Ok(())
}

fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match (target.get_mut(key), value) {
            (_, Value::Null) => {
                target.remove(key);
            }
            (Some(Value::Object(current)), Value::Object(fields)) => merge(current, fields),
            // An object that is replaced by a list takes the list unmodified, including nulls.
            (Some(current @ Value::Object(_)), list) => *current = list.clone(),
            (_, new) => {
                target.insert(key.clone(), without_nulls(new));
            }
        }
    }
}

/// A copy without null members of objects; nulls in lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_cases_match_rfc7386() {
        for (object, patch, want) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"a": null}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
            (json!({"a": [1]}), json!({"a": [null, {"x": null}]}), json!({"a": [null, {}]})),
        ] {
            let mut got = object.clone();
            apply(&mut got, &patch).unwrap();
            assert_eq!(got, want, "{object} + {patch}");
        }
    }

    #[test]
    fn merge_patch_non_object_is_rejected() {
        let error = apply(&mut json!({}), &Value::Null).unwrap_err();
        assert_eq!(error.to_string(), "Invalid JSON Patch");
        assert!(apply(&mut json!({}), &json!([])).is_err());
    }
}
