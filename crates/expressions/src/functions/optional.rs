//! Optional values.

use super::Row;
use crate::value::{Fault, Value};
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("optional.of", &["(A) -> optional(A)"], |values| match values {
        [value] => Ok(Value::some(value.clone())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("optional.ofNonZeroValue", &["(A) -> optional(A)"], |values| match values {
        [value] if is_zero(value) => Ok(Value::Optional(None)),
        [value] => Ok(Value::some(value.clone())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("optional.none", &["() -> optional(A)"], |_| Ok(Value::Optional(None))),
    ("optional.unwrap", &["(list(optional(A))) -> list(A)"], unwrap),
    ("unwrapOpt", &["list(optional(A)).() -> list(A)"], unwrap),
    ("hasValue", &["optional(A).() -> bool"], |values| match values {
        [Value::Optional(inner)] => Ok(Value::Bool(inner.is_some())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("value", &["optional(A).() -> A"], |values| match values {
        [Value::Optional(Some(inner))] => Ok((**inner).clone()),
        [Value::Optional(None)] => Err(Fault::new("optional.none() dereference")),
        _ => Err(Fault::no_such_overload()),
    }),
    ("or", &["optional(A).(optional(A)) -> optional(A)"], |values| match values {
        [Value::Optional(None), other @ Value::Optional(_)] => Ok(other.clone()),
        [some @ Value::Optional(Some(_)), _] => Ok(some.clone()),
        _ => Err(Fault::no_such_overload()),
    }),
    ("orValue", &["optional(A).(A) -> A"], |values| match values {
        [Value::Optional(Some(inner)), _] => Ok((**inner).clone()),
        [Value::Optional(None), other] => Ok(other.clone()),
        _ => Err(Fault::no_such_overload()),
    }),
    ("first", &["list(A).() -> optional(A)"], |values| match values {
        [Value::List(list)] => Ok(Value::Optional(list.get(0).map(Arc::new))),
        _ => Err(Fault::no_such_overload()),
    }),
    ("last", &["list(A).() -> optional(A)"], |values| match values {
        [Value::List(list)] => {
            let last = list.len().checked_sub(1).and_then(|last| list.get(last));
            Ok(Value::Optional(last.map(Arc::new)))
        }
        _ => Err(Fault::no_such_overload()),
    }),
];

fn unwrap<'a>(values: &[Value<'a>]) -> crate::value::EvaluationResult<'a> {
    let [Value::List(list)] = values else {
        return Err(Fault::no_such_overload());
    };
    let mut present = Vec::new();
    for item in list.iter() {
        match item {
            Value::Optional(inner) => present.extend(inner.map(|inner| (*inner).clone())),
            other => return Err(Fault::new(format!("value {other} is not optional"))),
        }
    }
    Ok(Value::list(present))
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0) | Value::Duration(0) => true,
        Value::Double(double) => *double == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Object(made) => made.fields.is_empty(),
        Value::Optional(inner) => inner.is_none(),
        _ => false,
    }
}
