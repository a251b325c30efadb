//! Lists and sets.

use super::Row;
use super::operators::overflow;
use crate::macros::SORT_BY_KEYS;
use crate::value::{EvaluationResult, Fault, List, Value};
use cel::common::ast::operators::ADD;
use std::cmp::Ordering;

/// Lists with ordered elements.
const COMPARABLE: &[&str] = &[
    "list(int).() -> bool",
    "list(uint).() -> bool",
    "list(double).() -> bool",
    "list(bool).() -> bool",
    "list(duration).() -> bool",
    "list(timestamp).() -> bool",
    "list(string).() -> bool",
    "list(bytes).() -> bool",
];
const EXTREME: &[&str] = &[
    "list(int).() -> int",
    "list(uint).() -> uint",
    "list(double).() -> double",
    "list(bool).() -> bool",
    "list(duration).() -> duration",
    "list(timestamp).() -> timestamp",
    "list(string).() -> string",
    "list(bytes).() -> bytes",
];
const SORTED: &[&str] = &[
    "list(int).() -> list(int)",
    "list(uint).() -> list(uint)",
    "list(double).() -> list(double)",
    "list(bool).() -> list(bool)",
    "list(duration).() -> list(duration)",
    "list(timestamp).() -> list(timestamp)",
    "list(string).() -> list(string)",
    "list(bytes).() -> list(bytes)",
];
const SORTED_BY: &[&str] = &[
    "list(A).(list(int)) -> list(A)",
    "list(A).(list(uint)) -> list(A)",
    "list(A).(list(double)) -> list(A)",
    "list(A).(list(bool)) -> list(A)",
    "list(A).(list(duration)) -> list(A)",
    "list(A).(list(timestamp)) -> list(A)",
    "list(A).(list(string)) -> list(A)",
    "list(A).(list(bytes)) -> list(A)",
];

pub const ROWS: &[Row] = &[
    ("isSorted", COMPARABLE, |values| {
        let list = only(values)?;
        let mut before: Option<Value<'_>> = None;
        for item in list.iter() {
            if let Some(before) = before
                && before.compare(&item)? == Ordering::Greater
            {
                return Ok(Value::Bool(false));
            }
            before = Some(item);
        }
        Ok(Value::Bool(true))
    }),
    (
        "sum",
        &[
            "list(int).() -> int",
            "list(uint).() -> uint",
            "list(double).() -> double",
            "list(duration).() -> duration",
        ],
        |values| {
            let list = only(values)?;
            let Some(mut sum) = list.get(0) else {
                return Ok(Value::Int(0));
            };
            let add = super::find(ADD).ok_or_else(overflow)?;
            for item in list.iter().skip(1) {
                sum = add.call(&[sum, item])?;
            }
            Ok(sum)
        },
    ),
    ("max", EXTREME, |values| extreme(values, "max", Ordering::Greater)),
    ("min", EXTREME, |values| extreme(values, "min", Ordering::Less)),
    ("indexOf", &["list(A).(A) -> int"], |values| match values {
        [Value::List(list), item] => Ok(index(list.iter().position(|other| other.equals(item)))),
        _ => Err(Fault::no_such_overload()),
    }),
    ("lastIndexOf", &["list(A).(A) -> int"], |values| match values {
        [Value::List(list), item] => {
            let found =
                (0..list.len()).rev().find(|at| list.get(*at).is_some_and(|other| other.equals(item)));
            Ok(index(found))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("slice", &["list(A).(int, int) -> list(A)"], |values| match values {
        [Value::List(list), Value::Int(start), Value::Int(end)] => slice(list, *start, *end),
        _ => Err(Fault::no_such_overload()),
    }),
    ("flatten", &["list(list(A)).() -> list(A)", "list(dyn).(int) -> list(dyn)"], |values| {
        let (list, depth) = match values {
            [Value::List(list)] => (list, 1),
            [Value::List(_), Value::Int(depth)] if *depth < 0 => {
                return Err(Fault::new("level must be non-negative"));
            }
            [Value::List(list), Value::Int(depth)] => (list, *depth),
            _ => return Err(Fault::no_such_overload()),
        };
        let mut flat = Vec::new();
        flatten(list, depth.min(100), &mut flat);
        Ok(Value::list(flat))
    }),
    ("reverse", &["list(A).() -> list(A)"], |values| {
        let list = only(values)?;
        let mut items: Vec<Value<'_>> = list.iter().collect();
        items.reverse();
        Ok(Value::list(items))
    }),
    ("distinct", &["list(A).() -> list(A)"], |values| {
        let list = only(values)?;
        let mut retained: Vec<Value<'_>> = Vec::new();
        for item in list.iter() {
            if !retained.iter().any(|other| other.equals(&item)) {
                retained.push(item);
            }
        }
        Ok(Value::list(retained))
    }),
    ("sort", SORTED, |values| {
        let list = only(values)?;
        sorted(list, list)
    }),
    (SORT_BY_KEYS, SORTED_BY, |values| match values {
        [Value::List(list), Value::List(keys)] => sorted(list, keys),
        _ => Err(Fault::no_such_overload()),
    }),
    ("lists.range", &["(int) -> list(int)"], |values| match values {
        [Value::Int(count)] => Ok(Value::list((0..*count).map(Value::Int).collect())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("sets.contains", &["(list(A), list(A)) -> bool"], |values| match values {
        [Value::List(a), Value::List(b)] => Ok(Value::Bool(contains_all(a, b))),
        _ => Err(Fault::no_such_overload()),
    }),
    ("sets.equivalent", &["(list(A), list(A)) -> bool"], |values| match values {
        [Value::List(a), Value::List(b)] => Ok(Value::Bool(contains_all(a, b) && contains_all(b, a))),
        _ => Err(Fault::no_such_overload()),
    }),
    ("sets.intersects", &["(list(A), list(A)) -> bool"], |values| match values {
        [Value::List(a), Value::List(b)] => {
            Ok(Value::Bool(b.iter().any(|item| a.iter().any(|other| other.equals(&item)))))
        }
        _ => Err(Fault::no_such_overload()),
    }),
];

fn only<'v, 'a>(values: &'v [Value<'a>]) -> Result<&'v List<'a>, Fault> {
    match values {
        [Value::List(list)] => Ok(list),
        _ => Err(Fault::no_such_overload()),
    }
}

fn index<'a>(found: Option<usize>) -> Value<'a> {
    Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}

fn extreme<'a>(values: &[Value<'a>], name: &str, wanted: Ordering) -> EvaluationResult<'a> {
    let list = only(values)?;
    let mut best = list.get(0).ok_or_else(|| Fault::new(format!("{name} called on empty list")))?;
    for item in list.iter().skip(1) {
        if item.compare(&best)? == wanted {
            best = item;
        }
    }
    Ok(best)
}

fn contains_all(list: &List<'_>, wanted: &List<'_>) -> bool {
    wanted.iter().all(|item| list.iter().any(|other| other.equals(&item)))
}

fn slice<'a>(list: &List<'a>, start: i64, end: i64) -> EvaluationResult<'a> {
    let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
    let wrong = |why: String| Err(Fault::new(format!("cannot slice({start}, {end}), {why}")));
    if start < 0 || end < 0 {
        return wrong("negative indexes not supported".to_owned());
    }
    if start > end {
        return wrong("start index must be less than or equal to end index".to_owned());
    }
    if length < end {
        return wrong(format!("list is length {length}"));
    }
    let (start, end) = (usize::try_from(start).unwrap_or(0), usize::try_from(end).unwrap_or(0));
    Ok(Value::list(list.iter().skip(start).take(end - start).collect()))
}

fn flatten<'a>(list: &List<'a>, depth: i64, flat: &mut Vec<Value<'a>>) {
    for item in list.iter() {
        match item {
            Value::List(inner) if depth > 0 => flatten(&inner, depth - 1, flat),
            other => flat.push(other),
        }
    }
}

fn sorted<'a>(list: &List<'a>, keys: &List<'a>) -> EvaluationResult<'a> {
    if list.len() != keys.len() {
        return Err(Fault::new(format!(
            "{SORT_BY_KEYS}() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            list.len(),
            keys.len()
        )));
    }
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.iter().zip(list.iter()).collect();
    // If any pair is incomparable, two neighbours are, in every permutation.
    let mut fault = None;
    pairs.sort_by(|(a, _), (b, _)| {
        a.compare(b).unwrap_or_else(|_| {
            fault = Some(Fault::new("list elements must have the same type"));
            Ordering::Equal
        })
    });
    match fault {
        Some(fault) => Err(fault),
        None => Ok(Value::list(pairs.into_iter().map(|(_, item)| item).collect())),
    }
}
