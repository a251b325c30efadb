//! JSON viewed through a schema: values are typed when an expression accesses them, without conversion in advance.

use crate::functions::time;
use crate::value::{List, Text, Value};
use serde_json::{Map as JsonMap, Value as Json};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Schema of a list or a map.
pub trait Typing: fmt::Debug + Send + Sync {
    /// An item of a list.
    fn item<'a>(&'a self, item: &'a Json) -> Value<'a>;

    /// A field by its name in expressions.
    fn field<'a>(&'a self, fields: &'a JsonMap<String, Json>, name: &str) -> Option<Value<'a>>;

    /// A field with its name in expressions; `None` if it has none.
    fn entry<'a>(&'a self, name: &'a str, value: &'a Json) -> Option<(Text<'a>, Value<'a>)>;

    /// Identity of the items of a list.
    fn identity(&self) -> Identity<'_>;
}

/// Identity of list items: determines which items of two lists are the same.
#[derive(Clone, Copy, Debug)]
pub enum Identity<'t> {
    /// Items at the same index.
    Index,
    /// Equal items, in any order (`x-kubernetes-list-type: set`).
    Value,
    /// Items with equal keys, in any order (`x-kubernetes-list-type: map`).
    Keys(&'t [Arc<str>]),
}

/// Text that is equal for the same items.
fn key(item: &Value<'_>, identity: Identity<'_>) -> String {
    let json = |value: &Value<'_>| value.to_json().map(|json| json.to_string()).unwrap_or_default();
    match (identity, item) {
        (Identity::Keys(keys), Value::Map(map)) => {
            let parts =
                keys.iter().map(|name| map.field(name).map_or_else(String::new, |value| json(&value)));
            parts.collect::<Vec<_>>().join("\0")
        }
        _ => json(item),
    }
}

/// Equality of lists of which the first has an identity other than the index.
pub(crate) fn equal<'a>(
    one: &List<'_>,
    other: &List<'a>,
    identity: Identity<'_>,
    same: &dyn Fn(&Value<'_>, &Value<'_>) -> bool,
) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match identity {
        Identity::Index => one.iter().zip(other.iter()).all(|(one, other)| same(&one, &other)),
        Identity::Value => {
            let known: HashSet<String> = one.iter().map(|item| key(&item, identity)).collect();
            other.iter().all(|item| known.contains(&key(&item, identity)))
        }
        Identity::Keys(_) => {
            let known: HashMap<String, Value<'_>> =
                one.iter().map(|item| (key(&item, identity), item)).collect();
            other.iter().all(|item| known.get(&key(&item, identity)).is_some_and(|known| same(known, &item)))
        }
    }
}

/// `one + other`: an item in both lists occurs once, at its position in the first list.
pub(crate) fn merge<'a>(one: &List<'a>, other: &List<'a>, typing: &'a dyn Typing) -> Value<'a> {
    let identity = typing.identity();
    let mut merged: Vec<Value<'a>> = one.iter().collect();
    if let Identity::Index = identity {
        merged.extend(other.iter());
        return Value::list(merged);
    }
    let mut positions: HashMap<String, usize> =
        merged.iter().enumerate().map(|(at, item)| (key(item, identity), at)).collect();
    for item in other.iter() {
        let key = key(&item, identity);
        match positions.get(&key).copied() {
            Some(at) => merged[at] = item,
            None => {
                positions.insert(key, merged.len());
                merged.push(item);
            }
        }
    }
    Value::List(List::Merged(Arc::from(merged), typing))
}

/// Value of a string whose format is a type of its own: `date`, `date-time`, `duration`, `byte`. `None` for other
/// formats, or if the text does not match the format.
#[must_use]
pub fn formatted(format: &str, text: &str) -> Option<Value<'static>> {
    match format {
        "date-time" => time::parse_timestamp(text).ok().map(Value::Timestamp),
        "date" => time::parse_timestamp(&format!("{text}T00:00:00Z")).ok().map(Value::Timestamp),
        "duration" => time::parse_duration(text).ok().map(Value::Duration),
        "byte" => {
            use base64::Engine;
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            decoded.ok().map(|bytes| Value::Bytes(bytes.into()))
        }
        _ => None,
    }
}
