//! Values: JSON is borrowed, everything else is reference-counted.

use crate::functions::authorizer::Check;
use crate::functions::formats::Format;
use crate::functions::url::Url;
use crate::typing::{self, Identity, Typing};
use machinery::names::SemanticVersion;
use machinery::quantity::Quantity;
use serde_json::{Number, Value as Json};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum depth of comparison and conversion: both are recursive.
const MAX_DEPTH: usize = 256;

/// Error of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Evaluation error.
    Message(Arc<str>),
    /// The cost limit is exceeded.
    Cost,
    /// A decision of the authorizer is missing.
    NeedsDecision(Arc<Check>),
}

impl Fault {
    pub fn new(message: impl Into<String>) -> Self {
        Self::Message(Arc::from(message.into()))
    }

    pub fn no_such_overload() -> Self {
        Self::new("no such overload")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(message) => f.write_str(message),
            Self::Cost => f.write_str("operation cancelled: actual cost limit exceeded"),
            Self::NeedsDecision(_) => f.write_str("an authorization decision is pending"),
        }
    }
}

pub type EvaluationResult<'a> = Result<Value<'a>, Fault>;

/// A string, borrowed from the data or shared.
#[derive(Clone)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[derive(Clone, Debug)]
pub enum List<'a> {
    Json(&'a [Json]),
    Typed(&'a [Json], &'a dyn Typing),
    Owned(Arc<[Value<'a>]>),
    /// Concatenation of lists whose items have identities.
    Merged(Arc<[Value<'a>]>, &'a dyn Typing),
}

#[derive(Clone, Debug)]
pub enum Map<'a> {
    Json(&'a serde_json::Map<String, Json>),
    Typed(&'a serde_json::Map<String, Json>, &'a dyn Typing),
    Owned(Arc<BTreeMap<Key, Value<'a>>>),
    /// Map in which the value of a missing key is an empty map.
    Defaulted(Arc<BTreeMap<Key, Value<'a>>>),
}

/// Map key. Numbers are one kind: `1`, `1u` and `1.0` are the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    String(Arc<str>),
}

/// An object built by an expression: `Object.spec{…}`.
#[derive(Clone, Debug)]
pub struct BuiltObject<'a> {
    pub type_name: Arc<str>,
    pub fields: BTreeMap<Arc<str>, Value<'a>>,
}

#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(jiff::Timestamp),
    /// Nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    Object(Arc<BuiltObject<'a>>),
    Type(Arc<str>),
    Quantity(Quantity),
    Url(Arc<Url>),
    Ip(IpAddr),
    Cidr(ipnet::IpNet),
    Semver(Arc<SemanticVersion>),
    Format(&'static Format),
    /// The authorizer with the attributes of a check, as far as they are set.
    Check(Arc<Check>),
    Decision(Arc<crate::functions::authorizer::Decision>),
}

impl<'a> From<&'a Json> for Value<'a> {
    fn from(json: &'a Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(flag) => Self::Bool(*flag),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => Self::Int(int),
                (None, Some(uint)) => Self::Uint(uint),
                (None, None) => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::String(Text::Borrowed(text)),
            Json::Array(items) => Self::List(List::Json(items)),
            Json::Object(fields) => Self::Map(Map::Json(fields)),
        }
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::String(Text::Shared(Arc::from(text)))
    }
}

impl From<&str> for Value<'_> {
    fn from(text: &str) -> Self {
        Self::String(Text::Shared(Arc::from(text)))
    }
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json(items) | Self::Typed(items, _) => items.len(),
            Self::Owned(items) | Self::Merged(items, _) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        match self {
            Self::Json(items) => items.get(index).map(Value::from),
            Self::Typed(items, typing) => items.get(index).map(|item| typing.item(item)),
            Self::Owned(items) | Self::Merged(items, _) => items.get(index).cloned(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Typing of lists whose items have identities other than their indexes.
    pub(crate) fn identified(&self) -> Option<&'a dyn Typing> {
        match self {
            Self::Typed(_, typing) | Self::Merged(_, typing) => {
                (!matches!(typing.identity(), Identity::Index)).then_some(*typing)
            }
            Self::Json(_) | Self::Owned(_) => None,
        }
    }
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json(fields) | Self::Typed(fields, _) => fields.len(),
            Self::Owned(fields) | Self::Defaulted(fields) => fields.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        match self {
            Self::Json(fields) => fields.get(name).map(Value::from),
            Self::Typed(fields, typing) => typing.field(fields, name),
            Self::Owned(fields) => fields.get(&Key::String(Arc::from(name))).cloned(),
            Self::Defaulted(fields) => {
                let known = fields.get(&Key::String(Arc::from(name))).cloned();
                Some(known.unwrap_or_else(|| Value::map(BTreeMap::new())))
            }
        }
    }

    /// Value of a key, for any numeric type.
    pub fn get(&self, key: &Value<'_>) -> Option<Value<'a>> {
        match (self, key) {
            (_, Value::String(name)) => self.field(name),
            (Self::Json(_) | Self::Typed(..), _) => None,
            (Self::Owned(fields) | Self::Defaulted(fields), key) => fields.get(&Key::of(key)?).cloned(),
        }
    }

    /// Reports whether the map has a key, regardless of defaults.
    pub fn contains(&self, key: &Value<'_>) -> bool {
        match self {
            Self::Defaulted(fields) => Key::of(key).is_some_and(|key| fields.contains_key(&key)),
            _ => self.get(key).is_some(),
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = (Value<'a>, Value<'a>)> + '_> {
        match self {
            Self::Json(fields) => Box::new(
                fields.iter().map(|(name, value)| (Value::String(Text::Borrowed(name)), Value::from(value))),
            ),
            Self::Typed(fields, typing) => Box::new(fields.iter().filter_map(|(name, value)| {
                let (name, value) = typing.entry(name, value)?;
                Some((Value::String(name), value))
            })),
            Self::Owned(fields) | Self::Defaulted(fields) => {
                Box::new(fields.iter().map(|(key, value)| (key.to_value(), value.clone())))
            }
        }
    }
}

impl Key {
    /// Converts to a map key; `None` for values of other kinds.
    pub fn of(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Int(int) => Self::Int(*int),
            Value::Uint(uint) => i64::try_from(*uint).map_or(Self::Uint(*uint), Self::Int),
            #[expect(clippy::cast_possible_truncation, reason = "whole numbers in the range of integers")]
            Value::Double(double) if double.fract() == 0.0 && double.abs() < 9e15 => {
                Self::Int(*double as i64)
            }
            Value::String(text) => Self::String(Arc::from(&**text)),
            _ => return None,
        })
    }

    pub fn to_value<'a>(&self) -> Value<'a> {
        match self {
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Int(int) => Value::Int(*int),
            Self::Uint(uint) => Value::Uint(*uint),
            Self::String(text) => Value::String(Text::Shared(text.clone())),
        }
    }
}

impl<'a> Value<'a> {
    pub fn list(items: Vec<Value<'a>>) -> Self {
        Self::List(List::Owned(Arc::from(items)))
    }

    pub fn map(entries: BTreeMap<Key, Value<'a>>) -> Self {
        Self::Map(Map::Owned(Arc::new(entries)))
    }

    pub fn some(value: Value<'a>) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// Result of `type()`.
    pub fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Object(made) => &made.type_name,
            Self::Type(_) => "type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Url(_) => "kubernetes.URL",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Check(check) => check.type_name(),
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// Size for costs: the length if it has one, otherwise 1.
    pub fn size(&self) -> u64 {
        let size = match self {
            // Limits count characters; bytes are a close approximation that needs no decoding.
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            Self::Optional(Some(value)) => return value.size(),
            Self::Ip(ip) => {
                if ip.is_ipv4() {
                    4
                } else {
                    16
                }
            }
            Self::Cidr(cidr) => {
                if cidr.addr().is_ipv4() {
                    4
                } else {
                    16
                }
            }
            _ => 1,
        };
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// Total size of the value, including the content of all strings and lists.
    pub fn weight(&self) -> u64 {
        self.weight_at(0)
    }

    fn weight_at(&self, depth: usize) -> u64 {
        if depth > MAX_DEPTH {
            return u64::MAX;
        }
        let of = |value: Value<'_>| value.weight_at(depth + 1);
        match self {
            Self::String(_) | Self::Bytes(_) => self.size() / 10,
            Self::List(list) => list.iter().map(of).fold(0, u64::saturating_add),
            Self::Map(map) => map
                .iter()
                .map(|(key, value)| key.size().saturating_add(of(value)))
                .fold(0, u64::saturating_add),
            _ => 1,
        }
    }

    /// Equality of `==`: numbers of different types can be equal, other values of different types are not.
    pub fn equals(&self, other: &Value<'_>) -> bool {
        self.equals_at(other, 0)
    }

    fn equals_at(&self, other: &Value<'_>, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        let depth = depth + 1;
        match (self, other) {
            (Self::Null, Value::Null) => true,
            (Self::Bool(a), Value::Bool(b)) => a == b,
            (Self::String(a), Value::String(b)) => **a == **b,
            (Self::Bytes(a), Value::Bytes(b)) => a == b,
            (Self::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Self::Duration(a), Value::Duration(b)) => a == b,
            (Self::List(a), Value::List(b)) => {
                let identity = a.identified().map_or(Identity::Index, Typing::identity);
                typing::equal(a, b, identity, &|a, b| a.equals_at(b, depth))
            }
            (Self::Map(a), Value::Map(b)) => {
                let same = |(key, value): (Value<'_>, Value<'_>)| {
                    b.get(&key).is_some_and(|other| value.equals_at(&other, depth))
                };
                a.len() == b.len() && a.iter().all(same)
            }
            (Self::Optional(a), Value::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals_at(b, depth),
                (None, None) => true,
                _ => false,
            },
            (Self::Object(a), Value::Object(b)) => {
                let same = |(name, value): (&Arc<str>, &Value<'_>)| {
                    b.fields.get(name).is_some_and(|other| value.equals_at(other, depth))
                };
                a.type_name == b.type_name && a.fields.len() == b.fields.len() && a.fields.iter().all(same)
            }
            (Self::Type(a), Value::Type(b)) => a == b,
            (Self::Quantity(a), Value::Quantity(b)) => a == b,
            (Self::Url(a), Value::Url(b)) => a == b,
            (Self::Ip(a), Value::Ip(b)) => a == b,
            (Self::Cidr(a), Value::Cidr(b)) => a == b,
            (Self::Semver(a), Value::Semver(b)) => a == b,
            (Self::Format(a), Value::Format(b)) => a.name == b.name,
            (a, b) => matches!(a.compare_numbers(b), Some(Some(Ordering::Equal))),
        }
    }

    /// Compares numbers. `None` if either is not a number; `Some(None)` if either is NaN.
    fn compare_numbers(&self, other: &Value<'_>) -> Option<Option<Ordering>> {
        Some(match (self, other) {
            (Self::Int(a), Value::Int(b)) => Some(a.cmp(b)),
            (Self::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
            (Self::Double(a), Value::Double(b)) => a.partial_cmp(b),
            (Self::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Int(a), Value::Double(b)) => compare_whole(i128::from(*a), *b),
            (Self::Uint(a), Value::Double(b)) => compare_whole(i128::from(*a), *b),
            (Self::Double(a), Value::Int(b)) => compare_whole(i128::from(*b), *a).map(Ordering::reverse),
            (Self::Double(a), Value::Uint(b)) => compare_whole(i128::from(*b), *a).map(Ordering::reverse),
            _ => return None,
        })
    }

    /// Order of `<`.
    pub fn compare(&self, other: &Value<'_>) -> Result<Ordering, Fault> {
        match (self, other) {
            (Self::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
            (Self::String(a), Value::String(b)) => Ok((**a).cmp(&**b)),
            (Self::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
            (Self::Timestamp(a), Value::Timestamp(b)) => Ok(a.cmp(b)),
            (Self::Duration(a), Value::Duration(b)) => Ok(a.cmp(b)),
            (a, b) => a
                .compare_numbers(b)
                .ok_or_else(Fault::no_such_overload)?
                .ok_or_else(|| Fault::new("NaN values cannot be ordered")),
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// Converts to JSON, if JSON can represent it.
    pub fn to_json(&self) -> Result<Json, String> {
        self.to_json_at(0)
    }

    fn to_json_at(&self, depth: usize) -> Result<Json, String> {
        if depth > MAX_DEPTH {
            return Err("the result is nested too deeply".to_owned());
        }
        let of = |value: &Value<'_>| value.to_json_at(depth + 1);
        Ok(match self {
            Self::Null => Json::Null,
            Self::Bool(flag) => Json::Bool(*flag),
            Self::Int(int) => (*int).into(),
            Self::Uint(uint) => (*uint).into(),
            Self::Double(double) => {
                Json::Number(Number::from_f64(*double).ok_or("the result is not a finite number")?)
            }
            Self::String(text) => Json::String((**text).to_owned()),
            Self::Bytes(bytes) => {
                use base64::Engine;
                Json::String(base64::engine::general_purpose::STANDARD.encode(bytes))
            }
            Self::Timestamp(at) => Json::String(at.to_string()),
            Self::Duration(nanos) => Json::String(crate::functions::time::seconds_text(*nanos)),
            Self::List(List::Json(items) | List::Typed(items, _)) => Json::Array(items.to_vec()),
            Self::Map(Map::Json(fields) | Map::Typed(fields, _)) => Json::Object((*fields).clone()),
            Self::List(list) => {
                list.iter().map(|item| of(&item)).collect::<Result<_, _>>().map(Json::Array)?
            }
            Self::Map(map) => {
                let entries = map.iter().map(|(key, value)| match key.as_str() {
                    Some(name) => Ok((name.to_owned(), of(&value)?)),
                    None => Err(format!("map key {key} is of type {}, not string", key.type_name())),
                });
                entries.collect::<Result<_, String>>().map(Json::Object)?
            }
            Self::Object(made) => {
                let fields = made.fields.iter().map(|(name, value)| Ok((name.to_string(), of(value)?)));
                fields.collect::<Result<_, String>>().map(Json::Object)?
            }
            Self::Optional(Some(value)) => of(value)?,
            Self::Optional(None) => Json::Null,
            Self::Quantity(quantity) => Json::String(quantity.to_string()),
            Self::Ip(ip) => Json::String(ip.to_string()),
            Self::Cidr(cidr) => Json::String(cidr.to_string()),
            other => return Err(format!("the result is a {}, which JSON has not", other.type_name())),
        })
    }
}

fn compare_whole(whole: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Larger than all integers of the value types.
    if double.abs() >= 1e20 {
        return Some(if double > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
    let floor = double.floor() as i128;
    Some(match whole.cmp(&floor) {
        Ordering::Equal if double.fract() != 0.0 => Ordering::Less,
        order => order,
    })
}

impl fmt::Display for Value<'_> {
    /// Text of a value in messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => flag.fmt(f),
            Self::Int(int) => int.fmt(f),
            Self::Uint(uint) => uint.fmt(f),
            Self::Double(double) => double.fmt(f),
            Self::String(text) => f.write_str(text),
            Self::Timestamp(at) => at.fmt(f),
            Self::Duration(nanos) => f.write_str(&crate::functions::time::seconds_text(*nanos)),
            Self::Type(name) => f.write_str(name),
            Self::Quantity(quantity) => quantity.fmt(f),
            Self::Ip(ip) => ip.fmt(f),
            Self::Cidr(cidr) => cidr.fmt(f),
            other => f.write_str(other.type_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_of_different_types_compare() {
        for (a, b, want) in [
            (Value::Int(1), Value::Double(1.0), Ordering::Equal),
            (Value::Int(-1), Value::Double(-1.5), Ordering::Greater),
            (Value::Uint(u64::MAX), Value::Int(-1), Ordering::Greater),
            (Value::Int(i64::MAX), Value::Double(9.3e18), Ordering::Less),
            (Value::Double(1e300), Value::Uint(3), Ordering::Greater),
        ] {
            assert_eq!(a.compare(&b), Ok(want), "{a} {b}");
            assert_eq!(b.compare(&a), Ok(want.reverse()), "{b} {a}");
        }
        assert!(Value::Double(f64::NAN).compare(&Value::Int(0)).is_err());
        assert!(!Value::Double(f64::NAN).equals(&Value::Double(f64::NAN)));
    }

    #[test]
    fn json_and_constructed_values_are_equal() {
        let json = json!({"a": [1, "x", null], "b": {"c": 2.5}});
        let list = Value::list(vec![Value::Int(1), "x".into(), Value::Null]);
        let inner = Value::map(BTreeMap::from([(Key::String("c".into()), Value::Double(2.5))]));
        let made =
            Value::map(BTreeMap::from([(Key::String("a".into()), list), (Key::String("b".into()), inner)]));
        assert!(made.equals(&Value::from(&json)));
        assert!(Value::from(&json).equals(&made));
        assert_eq!(made.to_json(), Ok(json));
    }
}
