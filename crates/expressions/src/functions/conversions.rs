//! Type conversions.

use super::Row;
use super::operators::overflow;
use crate::value::{EvaluationResult, Fault, Value};
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("type", &["(A) -> type(A)"], |values| match values {
        [value] => Ok(Value::Type(Arc::from(value.type_name()))),
        _ => Err(Fault::no_such_overload()),
    }),
    ("dyn", &["(A) -> dyn"], same),
    ("bool", &["(bool) -> bool", "(string) -> bool"], |values| match values {
        [Value::Bool(flag)] => Ok(Value::Bool(*flag)),
        [Value::String(text)] => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(conversion("string", "bool")),
        },
        _ => Err(Fault::no_such_overload()),
    }),
    ("bytes", &["(bytes) -> bytes", "(string) -> bytes"], |values| match values {
        [Value::Bytes(bytes)] => Ok(Value::Bytes(bytes.clone())),
        [Value::String(text)] => Ok(Value::Bytes(Arc::from(text.as_bytes()))),
        _ => Err(Fault::no_such_overload()),
    }),
    (
        "double",
        &["(double) -> double", "(int) -> double", "(string) -> double", "(uint) -> double"],
        |values| match values {
            [Value::Double(double)] => Ok(Value::Double(*double)),
            #[expect(clippy::cast_precision_loss, reason = "what the conversion is")]
            [Value::Int(int)] => Ok(Value::Double(*int as f64)),
            #[expect(clippy::cast_precision_loss, reason = "what the conversion is")]
            [Value::Uint(uint)] => Ok(Value::Double(*uint as f64)),
            [Value::String(text)] => {
                text.parse().map(Value::Double).map_err(|_| conversion("string", "double"))
            }
            _ => Err(Fault::no_such_overload()),
        },
    ),
    (
        "int",
        &[
            "(int) -> int",
            "(double) -> int",
            "(duration) -> int",
            "(string) -> int",
            "(timestamp) -> int",
            "(uint) -> int",
        ],
        |values| match values {
            [Value::Int(int)] => Ok(Value::Int(*int)),
            [Value::Uint(uint)] => i64::try_from(*uint).map(Value::Int).map_err(|_| overflow()),
            #[expect(clippy::cast_possible_truncation, reason = "checked to be in range")]
            [Value::Double(double)] if double.is_finite() && double.abs() < 9_223_372_036_854_775_807.0 => {
                Ok(Value::Int(*double as i64))
            }
            [Value::Double(_)] => Err(overflow()),
            [Value::Duration(nanos)] => Ok(Value::Int(*nanos)),
            [Value::Timestamp(at)] => Ok(Value::Int(at.as_second())),
            [Value::String(text)] => text.parse().map(Value::Int).map_err(|_| conversion("string", "int")),
            _ => Err(Fault::no_such_overload()),
        },
    ),
    ("uint", &["(uint) -> uint", "(double) -> uint", "(int) -> uint", "(string) -> uint"], |values| {
        let overflow = || Fault::new("unsigned integer overflow");
        match values {
            [Value::Uint(uint)] => Ok(Value::Uint(*uint)),
            [Value::Int(int)] => u64::try_from(*int).map(Value::Uint).map_err(|_| overflow()),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be in range"
            )]
            [Value::Double(double)] if *double >= 0.0 && *double < 18_446_744_073_709_551_615.0 => {
                Ok(Value::Uint(*double as u64))
            }
            [Value::Double(_)] => Err(overflow()),
            [Value::String(text)] => text.parse().map(Value::Uint).map_err(|_| conversion("string", "uint")),
            _ => Err(Fault::no_such_overload()),
        }
    }),
    (
        "string",
        &[
            "(string) -> string",
            "(bool) -> string",
            "(bytes) -> string",
            "(double) -> string",
            "(duration) -> string",
            "(int) -> string",
            "(timestamp) -> string",
            "(uint) -> string",
        ],
        |values| match values {
            [value] => to_string(value).map(Value::from),
            _ => Err(Fault::no_such_overload()),
        },
    ),
];

fn same<'a>(values: &[Value<'a>]) -> EvaluationResult<'a> {
    values.first().cloned().ok_or_else(Fault::no_such_overload)
}

fn conversion(from: &str, to: &str) -> Fault {
    Fault::new(format!("type conversion error from '{from}' to '{to}'"))
}

/// Result of `string()`.
pub fn to_string(value: &Value<'_>) -> Result<String, Fault> {
    Ok(match value {
        Value::String(text) => (**text).to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Uint(uint) => uint.to_string(),
        Value::Double(double) => double_text(*double),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec())
            .map_err(|_| Fault::new("invalid UTF-8 in bytes, cannot convert to string"))?,
        Value::Timestamp(at) => at.to_string(),
        Value::Duration(nanos) => super::time::seconds_text(*nanos),
        Value::Type(name) => name.to_string(),
        _ => return Err(Fault::no_such_overload()),
    })
}

/// Shortest text of a number; very large and very small ones have an exponent.
pub fn double_text(double: f64) -> String {
    if double.is_nan() {
        return "NaN".to_owned();
    }
    if double.is_infinite() {
        return if double > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let magnitude = double.abs();
    if double == 0.0 || (1e-4..1e21).contains(&magnitude) {
        return format!("{double}");
    }
    let text = format!("{double:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}
