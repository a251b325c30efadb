//! Scale subresource of a custom resource: paths of its replicas and its selector.

use crate::value::Fields;
use machinery::codec::typed::go_type;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Map, Value};
use std::sync::Arc;

/// Path of field names: `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath {
    text: Arc<str>,
}

/// Compiled scale subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    pub spec_replicas: FieldPath,
    pub status_replicas: FieldPath,
    pub label_selector: Option<FieldPath>,
}

/// Values of the scale subresource of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleValues {
    /// `None` if the object does not set it.
    pub spec_replicas: Option<i64>,
    pub status_replicas: i64,
    pub label_selector: String,
}

impl FieldPath {
    fn new(text: &str) -> Self {
        Self { text: super::intern::name(text) }
    }

    /// Field names of the path.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.text.strip_prefix('.').unwrap_or(&self.text).split('.')
    }

    /// Value at the path. The error is the message of Kubernetes.
    fn get<'v>(&self, object: &'v Value) -> Result<Option<&'v Value>, String> {
        let mut value = object;
        let mut seen = String::new();
        for name in self.names() {
            seen.push('.');
            seen.push_str(name);
            match value {
                Value::Null => return Ok(None),
                Value::Object(fields) => match fields.get(name) {
                    Some(field) => value = field,
                    None => return Ok(None),
                },
                other => return Err(self.mismatch(&seen, other, "map[string]interface{}")),
            }
        }
        Ok(Some(value))
    }

    fn mismatch(&self, at: &str, found: &Value, wanted: &str) -> String {
        let shown = machinery::patch::show_plain(found);
        format!("{at} accessor error: {shown} is of the type {}, expected {wanted}", go_type(found))
    }

    fn integer(&self, object: &Value) -> Result<Option<i64>, String> {
        let Some(value) = self.get(object)? else { return Ok(None) };
        value.as_i64().map(Some).ok_or_else(|| self.mismatch(&self.whole(), value, "int64"))
    }

    fn string(&self, object: &Value) -> Result<Option<String>, String> {
        let Some(value) = self.get(object)? else { return Ok(None) };
        let text = value.as_str().map(|text| Some(text.to_owned()));
        text.ok_or_else(|| self.mismatch(&self.whole(), value, "string"))
    }

    fn whole(&self) -> String {
        self.names().flat_map(|name| [".", name]).collect()
    }
}

impl Scale {
    pub(super) fn compile(scale: &Value) -> Self {
        Self {
            spec_replicas: FieldPath::new(scale.text("specReplicasPath")),
            status_replicas: FieldPath::new(scale.text("statusReplicasPath")),
            label_selector: scale
                .opt_text("labelSelectorPath")
                .filter(|path| !path.is_empty())
                .map(FieldPath::new),
        }
    }

    /// Scale values of an object.
    pub fn values(&self, object: &Value) -> Result<ScaleValues, String> {
        let selector = self.label_selector.as_ref().map(|path| path.string(object)).transpose()?;
        Ok(ScaleValues {
            spec_replicas: self.spec_replicas.integer(object)?,
            status_replicas: self.status_replicas.integer(object)?.unwrap_or(0),
            label_selector: selector.flatten().unwrap_or_default(),
        })
    }

    /// Sets the number of replicas in the spec of an object.
    pub fn set_replicas(&self, object: &mut Value, replicas: i64) -> Result<(), String> {
        let names: Vec<&str> = self.spec_replicas.names().collect();
        let Some((last, above)) = names.split_last() else { return Ok(()) };
        let mut value = object;
        let mut seen = String::new();
        for name in above {
            seen.push('.');
            seen.push_str(name);
            let Value::Object(fields) = value else {
                return Err(format!("value cannot be set because {seen} is not a map[string]interface{{}}"));
            };
            value = fields.entry(*name).or_insert_with(|| Value::Object(Map::new()));
        }
        let Value::Object(fields) = value else {
            return Err(format!("value cannot be set because {seen} is not a map[string]interface{{}}"));
        };
        fields.insert((*last).to_owned(), replicas.into());
        Ok(())
    }

    pub(super) fn check_spec(&self, object: &Value) -> ErrorList {
        replicas(&self.spec_replicas, object).into_iter().collect()
    }

    pub(super) fn check_status(&self, object: &Value) -> ErrorList {
        let mut errors: ErrorList = replicas(&self.status_replicas, object).into_iter().collect();
        if let Some(path) = &self.label_selector
            && let Err(why) = path.string(object)
        {
            errors.push(FieldError::invalid_str(&Path::new(&path.text), "", why));
        }
        errors
    }
}

fn replicas(path: &FieldPath, object: &Value) -> Option<FieldError> {
    let field = Path::new(&path.text);
    match path.integer(object) {
        Err(why) => Some(FieldError::invalid(&field, &0.into(), why)),
        Ok(Some(count)) if count < 0 => {
            Some(FieldError::invalid(&field, &count.into(), "should be a non-negative integer"))
        }
        Ok(Some(count)) if count > i64::from(i32::MAX) => {
            let detail = format!("should be less than or equal to {}", i32::MAX);
            Some(FieldError::invalid(&field, &count.into(), detail))
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scale() -> Scale {
        Scale::compile(
            &json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector"}),
        )
    }

    #[test]
    fn replicas_must_be_32_bit_integers() {
        for (object, want) in [
            (json!({}), vec![]),
            (json!({"spec": {"replicas": 1}, "status": {"replicas": 1, "selector": "a=b"}}), vec![]),
            (
                json!({"spec": {"replicas": -1}}),
                vec![".spec.replicas: Invalid value: -1: should be a non-negative integer"],
            ),
            (
                json!({"spec": {"replicas": 2_147_483_648_i64}}),
                vec![".spec.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647"],
            ),
            (
                json!({"spec": {"replicas": "x"}, "status": {"replicas": true, "selector": 1}}),
                vec![
                    ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
                    ".status.replicas: Invalid value: 0: .status.replicas accessor error: true is of the type bool, expected int64",
                    ".status.selector: Invalid value: \"\": .status.selector accessor error: 1 is of the type int64, expected string",
                ],
            ),
            (
                json!({"spec": "x"}),
                vec![
                    ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected map[string]interface{}",
                ],
            ),
        ] {
            let errors = scale().check_spec(&object).into_iter().chain(scale().check_status(&object));
            let texts: Vec<String> = errors.map(|error| error.to_string()).collect();
            assert_eq!(texts, want, "{object}");
        }
    }

    #[test]
    fn values_are_read_and_set() {
        let mut object = json!({"status": {"replicas": 2, "selector": "a=b"}});
        let values = scale().values(&object).expect("values");
        let want = ScaleValues { spec_replicas: None, status_replicas: 2, label_selector: "a=b".into() };
        assert_eq!(values, want);
        scale().set_replicas(&mut object, 3).expect("set");
        assert_eq!(scale().values(&object).map(|values| values.spec_replicas), Ok(Some(3)));
        assert!(scale().set_replicas(&mut json!({"spec": 1}), 3).is_err());
    }
}
