//! Reading and setting fields of dynamic objects by name.
//!
//! A field that is missing, `null` or of another type reads as the zero value, as an omitted field does in
//! Kubernetes; the codec has rejected wrong types before rules run.

use machinery::{Map, Value, map};

static NULL: Value = Value::Null;

/// Typed access to the fields of an object.
///
/// ```
/// use api::value::Fields;
/// use serde_json::json;
///
/// let mut pod = json!({"spec": {"hostNetwork": true, "priority": null}});
/// assert!(pod.at("spec.hostNetwork") == true && pod.field("spec").flag("hostNetwork"));
/// assert_eq!(pod.field("spec").int("priority"), 0);
/// pod.child_mut("spec").default_to("restartPolicy", "Always");
/// assert_eq!(pod.field("spec").text("restartPolicy"), "Always");
/// ```
pub trait Fields {
    /// The field itself; [`Value::Null`] when it is missing.
    fn field(&self, name: &str) -> &Value;
    /// The value at a dotted path: `spec.template.spec`.
    fn at(&self, path: &str) -> &Value;
    /// True if the field is present and not `null`.
    fn has(&self, name: &str) -> bool;
    /// A string; empty when missing.
    fn text(&self, name: &str) -> &str;
    fn opt_text(&self, name: &str) -> Option<&str>;
    /// An integer; 0 when missing.
    fn int(&self, name: &str) -> i64;
    fn opt_int(&self, name: &str) -> Option<i64>;
    /// A boolean; false when missing.
    fn flag(&self, name: &str) -> bool;
    fn opt_flag(&self, name: &str) -> Option<bool>;
    /// A list; empty when missing.
    fn items(&self, name: &str) -> &[Value];
    /// A map or struct, if present.
    fn entries(&self, name: &str) -> Option<&Map<String, Value>>;

    /// The field for writing, if present and not `null`.
    fn field_mut(&mut self, name: &str) -> Option<&mut Value>;
    /// The value at a dotted path for writing.
    fn at_mut(&mut self, path: &str) -> Option<&mut Value>;
    /// The items of a list for writing; none when missing.
    fn items_mut(&mut self, name: &str) -> &mut [Value];
    /// A struct-valued field for writing, created if missing.
    fn child_mut(&mut self, name: &str) -> &mut Value;
    /// Sets the field.
    fn set(&mut self, name: &str, value: impl Into<Value>);
    /// Removes and returns the field.
    fn unset(&mut self, name: &str) -> Option<Value>;
    /// Sets the field if it is missing or `null` (a pointer's default).
    fn default_to(&mut self, name: &str, value: impl Into<Value>);
    /// Sets the field if it is missing, `null`, `""` or 0 (a plain value's default).
    fn default_if_zero(&mut self, name: &str, value: impl Into<Value>);
}

impl Fields for Value {
    fn field(&self, name: &str) -> &Value {
        match self {
            Value::Object(map) => map::get(map, name).unwrap_or(&NULL),
            _ => &NULL,
        }
    }

    fn at(&self, path: &str) -> &Value {
        let (mut value, mut rest) = (self, path);
        while let Some(dot) = rest.bytes().position(|byte| byte == b'.') {
            value = value.field(&rest[..dot]);
            rest = &rest[dot + 1..];
        }
        value.field(rest)
    }

    fn has(&self, name: &str) -> bool {
        !self.field(name).is_null()
    }

    fn text(&self, name: &str) -> &str {
        self.field(name).as_str().unwrap_or("")
    }

    fn opt_text(&self, name: &str) -> Option<&str> {
        self.field(name).as_str()
    }

    fn int(&self, name: &str) -> i64 {
        self.field(name).as_i64().unwrap_or(0)
    }

    fn opt_int(&self, name: &str) -> Option<i64> {
        self.field(name).as_i64()
    }

    fn flag(&self, name: &str) -> bool {
        self.field(name).as_bool().unwrap_or(false)
    }

    fn opt_flag(&self, name: &str) -> Option<bool> {
        self.field(name).as_bool()
    }

    fn items(&self, name: &str) -> &[Value] {
        self.field(name).as_array().map_or(&[], Vec::as_slice)
    }

    fn entries(&self, name: &str) -> Option<&Map<String, Value>> {
        self.field(name).as_object()
    }

    fn field_mut(&mut self, name: &str) -> Option<&mut Value> {
        match self {
            Value::Object(map) => map::get_mut(map, name).filter(|value| !value.is_null()),
            _ => None,
        }
    }

    fn at_mut(&mut self, path: &str) -> Option<&mut Value> {
        path.split('.').try_fold(self, |value, name| value.field_mut(name))
    }

    fn items_mut(&mut self, name: &str) -> &mut [Value] {
        match self.field_mut(name) {
            Some(Value::Array(items)) => items,
            _ => &mut [],
        }
    }

    fn child_mut(&mut self, name: &str) -> &mut Value {
        let map = as_map(self);
        if !map::get(map, name).is_some_and(Value::is_object) {
            map.insert(name.to_owned(), Value::Object(Map::new()));
        }
        map::get_mut(map, name).expect("the child was just created")
    }

    fn set(&mut self, name: &str, value: impl Into<Value>) {
        let map = as_map(self);
        match map::get_mut(map, name) {
            Some(slot) => *slot = value.into(),
            None => {
                map.insert(name.to_owned(), value.into());
            }
        }
    }

    fn unset(&mut self, name: &str) -> Option<Value> {
        self.as_object_mut().and_then(|map| map::remove(map, name))
    }

    fn default_to(&mut self, name: &str, value: impl Into<Value>) {
        if !self.has(name) {
            self.set(name, value);
        }
    }

    fn default_if_zero(&mut self, name: &str, value: impl Into<Value>) {
        if is_zero(self.field(name)) {
            self.set(name, value);
        }
    }
}

/// True for values that Go omits from its JSON: `null`, `""`, 0, `false`, an empty list or map.
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(flag) => !flag,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Strings of a list.
pub fn texts(items: &[Value]) -> impl Iterator<Item = &str> {
    items.iter().map(|item| item.as_str().unwrap_or(""))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(map) = value else { unreachable!("set to a map above") };
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_field_reads_as_zero() {
        let value = json!({"a": {"b": "x", "n": 3, "t": true, "l": [1], "z": null}});
        assert_eq!(value.at("a.b"), &json!("x"));
        assert_eq!(value.at("a.c.d"), &Value::Null);
        let a = value.field("a");
        assert_eq!((a.text("b"), a.int("n"), a.flag("t"), a.items("l").len()), ("x", 3, true, 1));
        assert_eq!((a.text("q"), a.int("q"), a.flag("q"), a.items("q").len()), ("", 0, false, 0));
        assert!(!a.has("z"));
        assert_eq!(json!(3).text("x"), "");
    }

    #[test]
    fn defaults_set_only_missing_fields() {
        let mut value = json!({"a": "", "b": 0, "c": null, "d": "x"});
        for name in ["a", "b", "c", "d", "e"] {
            value.default_if_zero(name, "new");
        }
        assert_eq!(value, json!({"a": "new", "b": "new", "c": "new", "d": "x", "e": "new"}));
        let mut value = json!({"a": "", "c": null});
        for name in ["a", "c", "e"] {
            value.default_to(name, 1);
        }
        assert_eq!(value, json!({"a": "", "c": 1, "e": 1}));
        value.child_mut("f").set("g", true);
        assert!(value.at("f.g") == &json!(true));
        assert!(value.at_mut("f.g").is_some() && value.at_mut("f.h").is_none());
    }
}
