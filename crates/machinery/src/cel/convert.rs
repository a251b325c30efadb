//! JSON in, JSON out.

use ::cel::objects::{Key, Map};
use serde_json::{Number, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// Objects and lists may be nested this deep; the decoders of the API allow no more either.
const MAX_DEPTH: usize = 10_000;

pub fn to_cel(value: &Value) -> ::cel::Value {
    match value {
        Value::Null => ::cel::Value::Null,
        Value::Bool(flag) => ::cel::Value::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(int) => ::cel::Value::Int(int),
            None => ::cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => ::cel::Value::String(Arc::new(text.clone())),
        Value::Array(items) => ::cel::Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let map: HashMap<Key, ::cel::Value> = fields
                .iter()
                .map(|(name, value)| (Key::String(Arc::new(name.clone())), to_cel(value)))
                .collect();
            ::cel::Value::Map(Map { map: Arc::new(map) })
        }
    }
}

pub fn to_json(value: &::cel::Value) -> Result<Value, String> {
    to_json_at(value, 0)
}

fn to_json_at(value: &::cel::Value, depth: usize) -> Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err("the result is nested too deeply".to_owned());
    }
    Ok(match value {
        ::cel::Value::Null => Value::Null,
        ::cel::Value::Bool(flag) => Value::Bool(*flag),
        ::cel::Value::Int(int) => (*int).into(),
        ::cel::Value::UInt(int) => (*int).into(),
        ::cel::Value::Float(float) => {
            Value::Number(Number::from_f64(*float).ok_or("the result is no finite number")?)
        }
        ::cel::Value::String(text) => Value::String(text.to_string()),
        ::cel::Value::List(items) => items
            .iter()
            .map(|item| to_json_at(item, depth + 1))
            .collect::<Result<_, _>>()
            .map(Value::Array)?,
        ::cel::Value::Map(map) => {
            let entries = map.map.iter().map(|(key, value)| {
                let Key::String(name) = key else {
                    return Err("a key of the result is no string".to_owned());
                };
                Ok((name.to_string(), to_json_at(value, depth + 1)?))
            });
            entries.collect::<Result<_, _>>().map(Value::Object)?
        }
        other => return Err(format!("the result is a {}, which JSON has not", other.type_of())),
    })
}

/// The longest list or map in a value, and with `texts` the longest string: what a loop can run over.
pub fn widest(value: &Value, texts: bool) -> usize {
    let inner = |value| widest(value, texts);
    match value {
        Value::Array(items) => items.iter().map(inner).max().unwrap_or(0).max(items.len()),
        Value::Object(fields) => fields.values().map(inner).max().unwrap_or(0).max(fields.len()),
        Value::String(text) if texts => text.len(),
        _ => 0,
    }
}
