//! One step of a field path: a field, a list item by key or by value, or an index.

use crate::field::{show_named, show_str};
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A path element. The order of the variants is the order in sets.
#[derive(Clone, Debug)]
pub enum PathElement {
    Field(Arc<str>),
    /// An item of a list by its keys, sorted by name.
    Key(Vec<(Arc<str>, Value)>),
    /// An item of a set by its value.
    Value(Value),
    Index(i64),
}

/// A malformed path element, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PathElementError(pub String);

impl PathElement {
    pub fn field(name: &str) -> Self {
        Self::Field(Arc::from(name))
    }

    /// Parses `f:name`, `k:{…}`, `v:…`, `i:0`. `None` for unknown element types, which are skipped.
    pub fn parse(text: &str) -> Result<Option<Self>, PathElementError> {
        let bytes = text.as_bytes();
        if bytes.len() < 2 {
            return Err(PathElementError("key must be 2 characters long:".to_owned()));
        }
        if bytes[1] != b':' {
            return Err(PathElementError(format!("missing colon: {text}")));
        }
        let bad = |e: &dyn fmt::Display| PathElementError(e.to_string());
        // The second byte is a colon, so the first is ASCII and the cut is on a character boundary.
        let rest = &text[2..];
        match bytes[0] {
            b'f' => Ok(Some(Self::field(rest))),
            b'v' => serde_json::from_str(rest).map(|v| Some(Self::Value(v))).map_err(|e| bad(&e)),
            b'k' => {
                let keys: Map<String, Value> = serde_json::from_str(rest).map_err(|e| bad(&e))?;
                Ok(Some(Self::Key(keys.into_iter().map(|(k, v)| (Arc::from(k), v)).collect())))
            }
            b'i' => rest.parse().map(|i| Some(Self::Index(i))).map_err(|e| bad(&e)),
            _ => Ok(None),
        }
    }

    /// The form in managedFields.
    pub fn to_key(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(keys) => {
                let mut out = String::with_capacity(48);
                out.push_str("k:{");
                for (i, (name, value)) in keys.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    push_text(&mut out, name);
                    out.push(':');
                    match value {
                        Value::String(text) => push_text(&mut out, text),
                        other => out.push_str(&other.to_string()),
                    }
                }
                out.push('}');
                out
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl fmt::Display for PathElement {
    /// The form in messages: `.name`, `[name="c"]`, `[="v"]`, `[0]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                f.write_str("[")?;
                for (i, (name, value)) in keys.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", show_scalar(value))?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", show_scalar(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Appends a JSON string; few need escapes.
fn push_text(out: &mut String, text: &str) {
    if text.bytes().any(|byte| byte < b' ' || matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&')) {
        out.push_str(&show_named(text));
        return;
    }
    out.push('"');
    out.push_str(text);
    out.push('"');
}

fn show_scalar(value: &Value) -> String {
    match value {
        Value::String(text) => show_str(text),
        other => other.to_string(),
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                for ((a_name, a_value), (b_name, b_value)) in a.iter().zip(b) {
                    let order = a_name.cmp(b_name).then_with(|| compare_values(a_value, b_value));
                    if order.is_ne() {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// A total order of values: numbers (integers and floats by size), strings, booleans, lists, maps, null.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let items = a.iter().zip(b).map(|(a, b)| compare_values(a, b)).find(|o| o.is_ne());
            items.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let fields =
                a.iter().zip(b).map(|((ak, av), (bk, bv))| ak.cmp(bk).then_with(|| compare_values(av, bv)));
            fields.into_iter().find(|o| o.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}
