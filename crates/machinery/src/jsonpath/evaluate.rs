//! Evaluation of templates.

use super::{EvaluateError, Filter, Found, Missing, Node, Operator, Slice};
use crate::codec::typed::go_type;
use serde_json::Value;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Limit of the results of one step: recursive descents multiply.
const MAX_RESULTS: usize = 100_000;
/// Nesting limit of ranges.
const MAX_RANGES: usize = 64;

type Values<'v> = Vec<Found<'v>>;

pub(super) fn results<'v>(
    nodes: &'v [Node],
    value: &'v Value,
    missing: Missing,
) -> Result<Vec<Values<'v>>, EvaluateError> {
    let mut results = Vec::new();
    Evaluation { missing }.run(nodes, Cow::Borrowed(value), 0, &mut results)?;
    Ok(results)
}

fn fail<T>(message: impl Into<String>) -> Result<T, EvaluateError> {
    Err(EvaluateError(message.into()))
}

#[derive(Clone, Copy)]
struct Evaluation {
    missing: Missing,
}

impl Evaluation {
    /// Evaluates parts of a template up to the end of the range they are in. Returns the index of that end.
    fn run<'v>(
        self,
        nodes: &'v [Node],
        value: Found<'v>,
        ranges: usize,
        results: &mut Vec<Values<'v>>,
    ) -> Result<Option<usize>, EvaluateError> {
        if ranges > MAX_RANGES {
            return fail("ranges are nested too deeply");
        }
        let mut at = 0;
        while let Some(node) = nodes.get(at) {
            let operands = if let Node::List(operands) = node { operands.as_slice() } else { &[] };
            if operands.contains(&Node::End) {
                if ranges == 0 {
                    return fail("not in range, nothing to end");
                }
                return Ok(Some(at));
            }
            let found = self.walk(vec![value.clone()], node)?;
            if !operands.contains(&Node::Range) {
                results.push(found);
                check(results.len())?;
                at += 1;
                continue;
            }
            let body = nodes.get(at + 1..).unwrap_or(&[]);
            let mut end = None;
            if found.is_empty() {
                // Evaluates the body on null, to find its end.
                end = self.run(body, Cow::Owned(Value::Null), ranges + 1, &mut Vec::new())?;
            }
            for value in found {
                end = self.run(body, value, ranges + 1, results)?;
            }
            at += 1 + end.map_or(0, |end| end + 1);
        }
        Ok(None)
    }

    fn list<'v>(self, nodes: &'v [Node], values: Values<'v>) -> Result<Values<'v>, EvaluateError> {
        nodes.iter().try_fold(values, |values, node| self.walk(values, node))
    }

    fn walk<'v>(self, values: Values<'v>, node: &'v Node) -> Result<Values<'v>, EvaluateError> {
        let found = match node {
            Node::List(nodes) => self.list(nodes, values)?,
            Node::Text(text) => vec![Cow::Borrowed(text)],
            Node::Constant(constant) => values.iter().map(|_| Cow::Borrowed(constant)).collect(),
            Node::Field(name) => self.field(values, name)?,
            Node::Slice(slice) => elements(values, *slice)?,
            Node::Filter(filter) => self.filter(values, filter)?,
            Node::Wildcard => values.into_iter().flat_map(children).collect(),
            Node::Recursive => {
                let mut found = Vec::new();
                for value in values {
                    descend(value, &mut found)?;
                }
                found
            }
            Node::Union(parts) => {
                let mut found = Vec::new();
                for part in parts {
                    found.extend(self.list(part, values.clone())?);
                }
                found
            }
            Node::Range => values,
            Node::End => Vec::new(),
            Node::Unknown(identifier) => return fail(format!("unrecognized identifier {identifier}")),
        };
        check(found.len())?;
        Ok(found)
    }

    fn field<'v>(self, values: Values<'v>, name: &str) -> Result<Values<'v>, EvaluateError> {
        if values.is_empty() {
            return Ok(values);
        }
        let field = |value: Found<'v>| match value {
            Cow::Borrowed(value) => value.get(name).map(Cow::Borrowed),
            Cow::Owned(value) => value.get(name).cloned().map(Cow::Owned),
        };
        let found: Values<'v> = values.into_iter().filter_map(field).collect();
        if found.is_empty() && self.missing == Missing::Error {
            return fail(format!("{name} is not found"));
        }
        Ok(found)
    }

    fn filter<'v>(self, values: Values<'v>, filter: &'v Filter) -> Result<Values<'v>, EvaluateError> {
        let mut found = Vec::new();
        for value in values {
            if !value.is_array() {
                let shown = crate::patch::show_plain(&value);
                return fail(format!("{shown} is not array or slice and cannot be filtered"));
            }
            for item in children(value) {
                if self.passes(&item, filter)? {
                    found.push(item);
                }
            }
            check(found.len())?;
        }
        Ok(found)
    }

    fn passes(self, item: &Found<'_>, filter: &Filter) -> Result<bool, EvaluateError> {
        let item: &Value = item;
        let left = self.list(&filter.left, vec![Cow::Borrowed(item)]);
        if filter.operator == Operator::Exists {
            return Ok(left.is_ok_and(|left| !left.is_empty()));
        }
        let left = left?;
        let Some(left) = single(&left)? else { return Ok(false) };
        let right = self.list(&filter.right, vec![Cow::Borrowed(item)])?;
        let Some(right) = single(&right)? else { return Ok(false) };
        let less = || compare(left, right).map(|order| order == Ordering::Less);
        let equal = || equal(left, right);
        match &filter.operator {
            Operator::Equal => equal(),
            Operator::NotEqual => Ok(!equal()?),
            Operator::Less => less(),
            Operator::LessOrEqual => Ok(less()? || equal()?),
            Operator::Greater => Ok(!(less()? || equal()?)),
            Operator::GreaterOrEqual => Ok(!less()?),
            Operator::Exists => Ok(true),
            Operator::Unknown(operator) => fail(format!("unrecognized filter operator {operator}")),
        }
    }
}

fn check(count: usize) -> Result<(), EvaluateError> {
    if count > MAX_RESULTS { fail("too many results") } else { Ok(()) }
}

fn single<'f>(values: &'f [Found<'_>]) -> Result<Option<&'f Value>, EvaluateError> {
    match values {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => fail("can only compare one element at a time"),
    }
}

/// The children of a value. Those of a string are its bytes.
fn children(value: Found<'_>) -> Values<'_> {
    match value {
        Cow::Borrowed(Value::Object(fields)) => fields.values().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
        Cow::Owned(Value::Object(fields)) => fields.into_iter().map(|(_, value)| Cow::Owned(value)).collect(),
        Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
        Cow::Borrowed(Value::String(text)) => text.bytes().map(|byte| Cow::Owned(byte.into())).collect(),
        Cow::Owned(Value::String(text)) => text.bytes().map(|byte| Cow::Owned(byte.into())).collect(),
        _ => Vec::new(),
    }
}

/// A value and all values below it that have children.
fn descend<'v>(value: Found<'v>, found: &mut Values<'v>) -> Result<(), EvaluateError> {
    if let Value::String(text) = value.as_ref() {
        if !text.is_empty() {
            found.push(value);
        }
        return check(found.len());
    }
    let parts = children(value.clone());
    if parts.is_empty() {
        return Ok(());
    }
    found.push(value);
    check(found.len())?;
    parts.into_iter().try_for_each(|part| descend(part, found))
}

fn elements(values: Values<'_>, slice: Slice) -> Result<Values<'_>, EvaluateError> {
    let mut found = Vec::new();
    for value in values {
        if value.is_null() {
            continue;
        }
        let Value::Array(items) = value.as_ref() else {
            return fail(format!("{} is not array or slice", go_type(&value)));
        };
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let specified = slice.start.unwrap_or(0);
        let start = if specified < 0 { specified.saturating_add(length) } else { specified };
        let end = if slice.is_index { specified.saturating_add(1) } else { slice.end.unwrap_or(length) };
        let is_last = end == 0 && slice.is_index;
        let end = if end < 0 || is_last { end.saturating_add(length) } else { end };
        if start == end {
            return Ok(found);
        }
        for (index, is_within) in [(start, start < length), (end - 1, end <= length)] {
            if !is_within || index < 0 {
                return fail(format!("array index out of bounds: index {index}, length {length}"));
            }
        }
        if start > end {
            return fail(format!("starting index {start} is greater than ending index {end}"));
        }
        let step = slice.step.unwrap_or(1);
        let (Ok(start), Ok(end), Some(step)) = (
            usize::try_from(start),
            usize::try_from(end),
            usize::try_from(step).ok().filter(|step| *step > 0),
        ) else {
            return fail("step must be > 0");
        };
        let taken = children(value).into_iter().take(end).skip(start).step_by(step);
        found.extend(taken);
    }
    Ok(found)
}

const NO_COMPARISON: &str = "invalid type for comparison";
const INCOMPATIBLE: &str = "incompatible types for comparison";

fn equal(left: &Value, right: &Value) -> Result<bool, EvaluateError> {
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Ok(left == right),
        _ => compare(left, right).map(Ordering::is_eq),
    }
}

/// Order of two numbers of one kind, or of two strings.
fn compare(left: &Value, right: &Value) -> Result<Ordering, EvaluateError> {
    let is_basic = |value: &Value| matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_));
    match (left, right) {
        (Value::String(left), Value::String(right)) => Ok(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => match (left.is_f64(), right.is_f64()) {
            (true, true) => {
                let order = left.as_f64().partial_cmp(&right.as_f64());
                order.map_or_else(|| fail(NO_COMPARISON), Ok)
            }
            (false, false) => {
                let integer = |number: &serde_json::Number| {
                    number
                        .as_i64()
                        .map_or_else(|| number.as_u64().map(i128::from), |int| Some(i128::from(int)))
                };
                Ok(integer(left).cmp(&integer(right)))
            }
            _ => fail(INCOMPATIBLE),
        },
        (left, right) if !is_basic(left) || !is_basic(right) => fail(NO_COMPARISON),
        (Value::Bool(_), Value::Bool(_)) => fail(NO_COMPARISON),
        _ => fail(INCOMPATIBLE),
    }
}
