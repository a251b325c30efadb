//! Converts values that were merged as plain data (strategic merges, applies) to a type. Kubernetes decodes them by
//! other rules than a body, with other error texts.

use super::leaf::{self, Problem};
use super::typed::TypeError;
use crate::schema::{SchemaRef, Shape};
use serde_json::Value;

/// Converts plain data to the input form of [`super::typed::normalize`]: numbers that are too large for their type
/// lose their upper bits.
pub fn restore(value: &mut Value, schema: SchemaRef<'_>) -> Result<(), TypeError> {
    walk(value, schema).map_err(|message| TypeError { message })
}

fn walk(value: &mut Value, schema: SchemaRef<'_>) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    match schema.shape() {
        Shape::Any => Ok(()),
        Shape::Object => {
            let Value::Object(map) = value else {
                return Err(format!("cannot restore struct from: {}", kind(value)));
            };
            for (name, value) in map {
                if let Some(field) = schema.field(name) {
                    walk(value, field)?;
                }
            }
            Ok(())
        }
        Shape::Map => {
            let Value::Object(map) = value else {
                return Err(format!("cannot restore map from {}", kind(value)));
            };
            let Some(element) = schema.element() else { return Ok(()) };
            map.values_mut().try_for_each(|value| walk(value, element))
        }
        Shape::List => {
            let Value::Array(items) = value else {
                return Err(format!("cannot restore slice from {}", kind(value)));
            };
            let Some(element) = schema.element() else { return Ok(()) };
            items.iter_mut().try_for_each(|value| walk(value, element))
        }
        Shape::Bytes => bytes(value, schema),
        Shape::String => match value {
            Value::String(_) => Ok(()),
            // In Go a whole number converts to a character.
            Value::Number(number) if !number.is_f64() => {
                Err(format!("cannot convert int64 to {}", schema.type_name()))
            }
            _ => Err("unrecognized type: string".to_owned()),
        },
        Shape::Boolean => match value {
            Value::Bool(_) => Ok(()),
            _ => Err("unrecognized type: bool".to_owned()),
        },
        Shape::Number if value.is_number() => Ok(()),
        Shape::Number => Err("unrecognized type: float64".to_owned()),
        Shape::Int32 => {
            *value = low_half(whole_number(value, "int32")?).into();
            Ok(())
        }
        Shape::Int64 => {
            *value = whole_number(value, "int64")?.into();
            Ok(())
        }
        // These decode themselves from JSON, in any context.
        Shape::Time | Shape::MicroTime | Shape::Duration | Shape::Quantity | Shape::IntOrString => {
            let read = match &*value {
                Value::String(text) => leaf::string(schema, text.clone()),
                Value::Number(number) => leaf::number(schema, &leaf::number_text(number)),
                Value::Bool(flag) => leaf::boolean(schema, *flag),
                Value::Array(_) => Err(leaf::container(schema, "array")),
                _ => Err(leaf::container(schema, "object")),
            };
            read.map(|_| ()).map_err(problem_text)
        }
    }
}

fn bytes(value: &mut Value, schema: SchemaRef<'_>) -> Result<(), String> {
    match value {
        Value::String(text) => match leaf::string(schema, std::mem::take(text)) {
            Ok(read) => {
                *value = read;
                Ok(())
            }
            Err(problem) => Err(format!("error decoding from json: {}", problem_text(problem))),
        },
        Value::Array(_) => Ok(()),
        other => Err(format!("cannot restore slice from {}", kind(other))),
    }
}

/// A number for a field of the type `name`.
fn whole_number(value: &Value, name: &str) -> Result<i64, String> {
    let Value::Number(number) = value else { return Err(format!("unrecognized type: {name}")) };
    match (number.as_i64(), number.as_f64()) {
        (Some(whole), _) => Ok(whole),
        (None, Some(float)) if float.trunc() == float => Ok(truncated(float)),
        _ => Err(format!("cannot convert float64 to {name}")),
    }
}

/// Bound of 64-bit whole numbers, positive and negative.
const RANGE: f64 = 9_223_372_036_854_775_808.0;

/// A float as a whole number; out-of-range values become the smallest one, as on most processors.
fn truncated(float: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be within range")]
    let whole = float as i64;
    if (-RANGE..RANGE).contains(&float) { whole } else { i64::MIN }
}

#[expect(clippy::cast_possible_truncation, reason = "the upper bits are lost on purpose")]
fn low_half(whole: i64) -> i32 {
    whole as i32
}

fn problem_text(problem: Problem) -> String {
    match problem {
        Problem::Type { what, of } => format!("json: cannot unmarshal {what} into Go value of type {of}"),
        Problem::FatalType { what, of } => {
            format!("json: cannot unmarshal {what} into Go value of type {of}")
        }
        Problem::Text(text) | Problem::Fatal(text) => text,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}
