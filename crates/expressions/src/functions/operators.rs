//! Operators: arithmetic, comparison, containment, indexing.

use super::Row;
use crate::macros;
use crate::value::{EvaluationResult, Fault, Value};
use cel::common::ast::operators::{
    ADD, CONDITIONAL, DIVIDE, EQUALS, GREATER, GREATER_EQUALS, IN, INDEX, LESS, LESS_EQUALS, LOGICAL_AND,
    LOGICAL_NOT, LOGICAL_OR, MODULO, MULTIPLY, NEGATE, NOT_EQUALS, NOT_STRICTLY_FALSE, OPT_INDEX, SUBSTRACT,
};
use std::cmp::Ordering;
use std::sync::Arc;

/// Pairs of comparable types.
const ORDERED: &[&str] = &[
    "(bool, bool) -> bool",
    "(int, int) -> bool",
    "(int, double) -> bool",
    "(int, uint) -> bool",
    "(uint, uint) -> bool",
    "(uint, double) -> bool",
    "(uint, int) -> bool",
    "(double, double) -> bool",
    "(double, int) -> bool",
    "(double, uint) -> bool",
    "(string, string) -> bool",
    "(bytes, bytes) -> bool",
    "(timestamp, timestamp) -> bool",
    "(duration, duration) -> bool",
];

pub const ROWS: &[Row] = &[
    // These have plan nodes of their own; the rows are for the type checker.
    (CONDITIONAL, &["(bool, A, A) -> A"], |_| Err(Fault::no_such_overload())),
    (LOGICAL_AND, &["(bool, bool) -> bool"], |_| Err(Fault::no_such_overload())),
    (LOGICAL_OR, &["(bool, bool) -> bool"], |_| Err(Fault::no_such_overload())),
    (NOT_STRICTLY_FALSE, &["(bool) -> bool"], |_| Err(Fault::no_such_overload())),
    (macros::INSERT, &["(map(A, B), map(A, B)) -> map(A, B)", "(map(A, B), A, B) -> map(A, B)"], |_| {
        Err(Fault::no_such_overload())
    }),
    (LOGICAL_NOT, &["(bool) -> bool"], |values| match values {
        [Value::Bool(flag)] => Ok(Value::Bool(!flag)),
        _ => Err(Fault::no_such_overload()),
    }),
    (EQUALS, &["(A, A) -> bool"], |values| match values {
        [a, b] => Ok(Value::Bool(a.equals(b))),
        _ => Err(Fault::no_such_overload()),
    }),
    (NOT_EQUALS, &["(A, A) -> bool"], |values| match values {
        [a, b] => Ok(Value::Bool(!a.equals(b))),
        _ => Err(Fault::no_such_overload()),
    }),
    (LESS, ORDERED, |values| ordered(values, |order| order == Ordering::Less)),
    (LESS_EQUALS, ORDERED, |values| ordered(values, |order| order != Ordering::Greater)),
    (GREATER, ORDERED, |values| ordered(values, |order| order == Ordering::Greater)),
    (GREATER_EQUALS, ORDERED, |values| ordered(values, |order| order != Ordering::Less)),
    (
        ADD,
        &[
            "(bytes, bytes) -> bytes",
            "(double, double) -> double",
            "(duration, duration) -> duration",
            "(duration, timestamp) -> timestamp",
            "(timestamp, duration) -> timestamp",
            "(int, int) -> int",
            "(list(A), list(A)) -> list(A)",
            "(string, string) -> string",
            "(uint, uint) -> uint",
        ],
        add,
    ),
    (
        SUBSTRACT,
        &[
            "(double, double) -> double",
            "(duration, duration) -> duration",
            "(int, int) -> int",
            "(timestamp, duration) -> timestamp",
            "(timestamp, timestamp) -> duration",
            "(uint, uint) -> uint",
        ],
        subtract,
    ),
    (MULTIPLY, &["(double, double) -> double", "(int, int) -> int", "(uint, uint) -> uint"], |values| {
        match values {
            [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a * b)),
            [Value::Int(a), Value::Int(b)] => a.checked_mul(*b).map(Value::Int).ok_or_else(overflow),
            [Value::Uint(a), Value::Uint(b)] => a.checked_mul(*b).map(Value::Uint).ok_or_else(uint_overflow),
            _ => Err(Fault::no_such_overload()),
        }
    }),
    (DIVIDE, &["(double, double) -> double", "(int, int) -> int", "(uint, uint) -> uint"], |values| {
        match values {
            [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a / b)),
            [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
                Err(Fault::new("division by zero"))
            }
            [Value::Int(a), Value::Int(b)] => a.checked_div(*b).map(Value::Int).ok_or_else(overflow),
            [Value::Uint(a), Value::Uint(b)] => a.checked_div(*b).map(Value::Uint).ok_or_else(uint_overflow),
            _ => Err(Fault::no_such_overload()),
        }
    }),
    (MODULO, &["(int, int) -> int", "(uint, uint) -> uint"], |values| match values {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(Fault::new("modulus by zero"))
        }
        [Value::Int(a), Value::Int(b)] => a.checked_rem(*b).map(Value::Int).ok_or_else(overflow),
        [Value::Uint(a), Value::Uint(b)] => a.checked_rem(*b).map(Value::Uint).ok_or_else(uint_overflow),
        _ => Err(Fault::no_such_overload()),
    }),
    (NEGATE, &["(double) -> double", "(int) -> int"], |values| match values {
        [Value::Double(a)] => Ok(Value::Double(-a)),
        [Value::Int(a)] => a.checked_neg().map(Value::Int).ok_or_else(overflow),
        _ => Err(Fault::no_such_overload()),
    }),
    (
        INDEX,
        &[
            "(list(A), int) -> A",
            "(map(A, B), A) -> B",
            "(optional(list(A)), int) -> optional(A)",
            "(optional(map(A, B)), A) -> optional(B)",
        ],
        |values| match values {
            [Value::Optional(inner), key] => optional_index(inner.as_deref(), key),
            [of, key] => index(of, key)?.ok_or_else(|| match of {
                Value::List(_) => Fault::new(format!("index out of bounds: {key}")),
                _ => no_such_key(key),
            }),
            _ => Err(Fault::no_such_overload()),
        },
    ),
    (
        OPT_INDEX,
        &[
            "(list(A), int) -> optional(A)",
            "(optional(list(A)), int) -> optional(A)",
            "(map(A, B), A) -> optional(B)",
            "(optional(map(A, B)), A) -> optional(B)",
        ],
        |values| match values {
            [Value::Optional(inner), key] => optional_index(inner.as_deref(), key),
            [of, key] => optional_index(Some(of), key),
            _ => Err(Fault::no_such_overload()),
        },
    ),
    (IN, &["(A, list(A)) -> bool", "(A, map(A, B)) -> bool"], |values| match values {
        [item, Value::List(list)] => Ok(Value::Bool(list.iter().any(|other| other.equals(item)))),
        [key, Value::Map(map)] => Ok(Value::Bool(map.contains(key))),
        _ => Err(Fault::no_such_overload()),
    }),
    (
        "size",
        &[
            "(bytes) -> int",
            "bytes.() -> int",
            "(list(A)) -> int",
            "list(A).() -> int",
            "(map(A, B)) -> int",
            "map(A, B).() -> int",
            "(string) -> int",
            "string.() -> int",
        ],
        |values| {
            let size = match values {
                [Value::String(text)] => text.chars().count(),
                [Value::Bytes(bytes)] => bytes.len(),
                [Value::List(list)] => list.len(),
                [Value::Map(map)] => map.len(),
                _ => return Err(Fault::no_such_overload()),
            };
            Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
        },
    ),
];

pub fn no_such_key(key: &Value<'_>) -> Fault {
    Fault::new(format!("no such key: {key}"))
}

pub fn overflow() -> Fault {
    Fault::new("integer overflow")
}

fn uint_overflow() -> Fault {
    Fault::new("unsigned integer overflow")
}

fn ordered<'a>(values: &[Value<'a>], holds: impl Fn(Ordering) -> bool) -> EvaluationResult<'a> {
    match values {
        [a, b] => Ok(Value::Bool(holds(a.compare(b)?))),
        _ => Err(Fault::no_such_overload()),
    }
}

fn add<'a>(values: &[Value<'a>]) -> EvaluationResult<'a> {
    let [a, b] = values else {
        return Err(Fault::no_such_overload());
    };
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.checked_add(*b).map(Value::Int).ok_or_else(overflow),
        (Value::Uint(a), Value::Uint(b)) => a.checked_add(*b).map(Value::Uint).ok_or_else(uint_overflow),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => Ok(format!("{}{}", &**a, &**b).into()),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(Value::Bytes(a.iter().chain(b.iter()).copied().collect())),
        (Value::List(a), Value::List(b)) => Ok(match a.identified() {
            Some(typing) => crate::typing::merge(a, b, typing),
            None => Value::list(a.iter().chain(b.iter()).collect()),
        }),
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_add(*b).map(Value::Duration).ok_or_else(|| Fault::new("duration overflow"))
        }
        (Value::Timestamp(at), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(at)) => {
            super::time::shift(*at, *by)
        }
        _ => Err(Fault::no_such_overload()),
    }
}

fn subtract<'a>(values: &[Value<'a>]) -> EvaluationResult<'a> {
    let [a, b] = values else {
        return Err(Fault::no_such_overload());
    };
    let duration_overflow = || Fault::new("duration overflow");
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.checked_sub(*b).map(Value::Int).ok_or_else(overflow),
        (Value::Uint(a), Value::Uint(b)) => a.checked_sub(*b).map(Value::Uint).ok_or_else(uint_overflow),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_sub(*b).map(Value::Duration).ok_or_else(duration_overflow)
        }
        (Value::Timestamp(at), Value::Duration(by)) => {
            super::time::shift(*at, by.checked_neg().ok_or_else(duration_overflow)?)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) => {
            let nanos = a.as_nanosecond() - b.as_nanosecond();
            i64::try_from(nanos).map(Value::Duration).map_err(|_| duration_overflow())
        }
        _ => Err(Fault::no_such_overload()),
    }
}

/// List index of a number.
pub fn list_index(of: &Value<'_>) -> Result<Option<usize>, Fault> {
    match of {
        Value::Int(index) => Ok(usize::try_from(*index).ok()),
        Value::Uint(index) => Ok(usize::try_from(*index).ok()),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a small whole number"
        )]
        Value::Double(index) if index.fract() == 0.0 && *index >= 0.0 && *index < 1e15 => {
            Ok(Some(*index as usize))
        }
        Value::Double(index) => Err(Fault::new(format!("unsupported index value {index} in list"))),
        other => Err(Fault::new(format!("unsupported index type '{}' in list", other.type_name()))),
    }
}

fn index<'a>(of: &Value<'a>, key: &Value<'_>) -> Result<Option<Value<'a>>, Fault> {
    match of {
        Value::List(list) => Ok(list_index(key)?.and_then(|list_index| list.get(list_index))),
        Value::Map(map) => Ok(map.get(key)),
        Value::Object(made) => Ok(key.as_str().and_then(|name| made.fields.get(name).cloned())),
        _ => Err(no_such_key(key)),
    }
}

fn optional_index<'a>(of: Option<&Value<'a>>, key: &Value<'_>) -> EvaluationResult<'a> {
    let found = match of {
        None => None,
        Some(of @ (Value::List(_) | Value::Map(_) | Value::Object(_))) => index(of, key)?,
        Some(_) => None,
    };
    Ok(Value::Optional(found.map(Arc::new)))
}
