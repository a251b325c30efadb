//! Resource quantities.

use super::Row;
use crate::value::{EvaluationResult, Fault, Value};
use machinery::quantity::Quantity;
use std::cmp::Ordering;

pub const ROWS: &[Row] = &[
    ("quantity", &["(string) -> Quantity"], |values| match values {
        [Value::String(text)] => {
            Quantity::parse(text).map(Value::Quantity).map_err(|why| Fault::new(why.to_string()))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("isQuantity", &["(string) -> bool"], |values| match values {
        [Value::String(text)] => Ok(Value::Bool(Quantity::parse(text).is_ok())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("sign", &["(Quantity) -> int"], |values| match values {
        [Value::Quantity(quantity)] => Ok(Value::Int(quantity.sign().into())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("isGreaterThan", &["Quantity.(Quantity) -> bool"], |values| {
        compared(values, |order| Value::Bool(order == Ordering::Greater))
    }),
    ("isLessThan", &["Quantity.(Quantity) -> bool"], |values| {
        compared(values, |order| Value::Bool(order == Ordering::Less))
    }),
    ("compareTo", &["Quantity.(Quantity) -> int"], |values| {
        compared(values, |order| Value::Int(order as i64))
    }),
    ("asApproximateFloat", &["Quantity.() -> double"], |values| match values {
        [Value::Quantity(quantity)] => Ok(Value::Double(quantity.as_f64())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("asInteger", &["Quantity.() -> int"], |values| match values {
        [Value::Quantity(quantity)] => {
            quantity.as_i64().map(Value::Int).ok_or_else(|| Fault::new("cannot convert value to integer"))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("isInteger", &["Quantity.() -> bool"], |values| match values {
        [Value::Quantity(quantity)] => Ok(Value::Bool(quantity.as_i64().is_some())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("add", &["Quantity.(Quantity) -> Quantity", "Quantity.(int) -> Quantity"], |values| {
        let (mut sum, other) = pair(values)?;
        sum += other;
        Ok(Value::Quantity(sum))
    }),
    ("sub", &["Quantity.(Quantity) -> Quantity", "Quantity.(int) -> Quantity"], |values| {
        let (mut rest, other) = pair(values)?;
        rest -= other;
        Ok(Value::Quantity(rest))
    }),
];

fn pair(values: &[Value<'_>]) -> Result<(Quantity, Quantity), Fault> {
    match values {
        [Value::Quantity(a), Value::Quantity(b)] => Ok((*a, *b)),
        [Value::Quantity(a), Value::Int(b)] => Ok((*a, Quantity::new(*b))),
        _ => Err(Fault::no_such_overload()),
    }
}

fn compared<'a>(values: &[Value<'a>], of: impl Fn(Ordering) -> Value<'a>) -> EvaluationResult<'a> {
    match values {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(of(a.cmp(b))),
        _ => Err(Fault::no_such_overload()),
    }
}
