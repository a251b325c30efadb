//! Strings: search, split, replace, regular expressions.

use super::Row;
use super::operators::list_index;
use crate::value::{EvaluationResult, Fault, Value};
use regex::Regex;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Size limit of a compiled pattern.
const MAX_PATTERN: usize = 1024 * 1024;
/// Maximum number of patterns compiled per evaluation.
const MAX_COMPILATIONS: usize = 200;
/// Size of the per-thread cache of compiled patterns.
const MAX_CACHED: usize = 4;

pub const ROWS: &[Row] = &[
    ("contains", &["string.(string) -> bool"], |values| two(values, |text, part| text.contains(part))),
    ("startsWith", &["string.(string) -> bool"], |values| two(values, |text, part| text.starts_with(part))),
    ("endsWith", &["string.(string) -> bool"], |values| two(values, |text, part| text.ends_with(part))),
    ("matches", &["(string, string) -> bool", "string.(string) -> bool"], |values| match values {
        [Value::String(text), Value::String(wanted)] => {
            let wanted = dynamic(wanted)?.map_err(|why| Fault::new(why.to_string()))?;
            Ok(Value::Bool(wanted.is_match(text)))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("find", &["string.(string) -> string"], |values| match values {
        [Value::String(text), Value::String(wanted)] => {
            let wanted = legal(wanted)?;
            Ok(wanted.find(text).map_or("", |found| found.as_str()).into())
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("findAll", &["string.(string) -> list(string)", "string.(string, int) -> list(string)"], |values| {
        let (text, wanted, limit) = match values {
            [Value::String(text), Value::String(wanted)] => (text, wanted, -1),
            [Value::String(text), Value::String(wanted), Value::Int(limit)] => (text, wanted, *limit),
            _ => return Err(Fault::no_such_overload()),
        };
        let wanted = legal(wanted)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let found = wanted.find_iter(text).take(limit).map(|found| found.as_str().into());
        Ok(Value::list(found.collect()))
    }),
    ("charAt", &["string.(int) -> string"], |values| match values {
        [Value::String(text), Value::Int(index)] => {
            let out = || Fault::new(format!("index out of range: {index}"));
            let at = usize::try_from(*index).map_err(|_| out())?;
            match text.chars().nth(at) {
                Some(c) => Ok(c.to_string().into()),
                None if at == text.chars().count() => Ok("".into()),
                None => Err(out()),
            }
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("indexOf", &["string.(string) -> int", "string.(string, int) -> int"], |values| match values {
        [Value::String(text), Value::String(part)] => Ok(Value::Int(index_of(text, part, 0))),
        [Value::String(text), Value::String(part), Value::Int(from)] => {
            let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
            if *from < 0 {
                return Err(Fault::new(format!("index out of range: {from}")));
            }
            if *from > length {
                return Ok(Value::Int(-1));
            }
            Ok(Value::Int(index_of(text, part, usize::try_from(*from).unwrap_or(usize::MAX))))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("lastIndexOf", &["string.(string) -> int", "string.(string, int) -> int"], |values| {
        let (text, part, until) = match values {
            [Value::String(text), Value::String(part)] => (text, part, usize::MAX),
            [Value::String(text), Value::String(part), Value::Int(until)] => {
                let until = usize::try_from(*until)
                    .map_err(|_| Fault::new(format!("index out of range: {until}")))?;
                (text, part, until)
            }
            _ => return Err(Fault::no_such_overload()),
        };
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let found = starts
            .iter()
            .take(until.saturating_add(1))
            .rposition(|at| text.get(*at..).is_some_and(|rest| rest.starts_with(&**part)));
        Ok(Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)))
    }),
    ("lowerAscii", &["string.() -> string"], |values| one(values, str::to_ascii_lowercase)),
    ("upperAscii", &["string.() -> string"], |values| one(values, str::to_ascii_uppercase)),
    ("trim", &["string.() -> string"], |values| one(values, |text| text.trim().to_owned())),
    ("strings.quote", &["(string) -> string"], |values| one(values, quote)),
    ("jsonpatch.escapeKey", &["(string) -> string"], |values| {
        one(values, |text| text.replace('~', "~0").replace('/', "~1"))
    }),
    ("replace", &["string.(string, string) -> string", "string.(string, string, int) -> string"], |values| {
        match values {
            [Value::String(text), Value::String(from), Value::String(to)] => {
                Ok(text.replace(&**from, to).into())
            }
            [Value::String(text), Value::String(from), Value::String(to), Value::Int(limit)] => {
                Ok(match usize::try_from(*limit) {
                    Ok(limit) => text.replacen(&**from, to, limit).into(),
                    Err(_) => text.replace(&**from, to).into(),
                })
            }
            _ => Err(Fault::no_such_overload()),
        }
    }),
    ("split", &["string.(string) -> list(string)", "string.(string, int) -> list(string)"], |values| {
        let (text, by, limit) = match values {
            [Value::String(text), Value::String(by)] => (text, by, -1),
            [Value::String(text), Value::String(by), Value::Int(limit)] => (text, by, *limit),
            _ => return Err(Fault::no_such_overload()),
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Value::list(split(text, by, limit).into_iter().map(Value::from).collect()))
    }),
    ("substring", &["string.(int) -> string", "string.(int, int) -> string"], |values| {
        let (text, start, end) = match values {
            [Value::String(text), Value::Int(start)] => {
                (text, *start, i64::try_from(text.chars().count()).unwrap_or(i64::MAX))
            }
            [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, *end),
            _ => return Err(Fault::no_such_overload()),
        };
        substring(text, start, end)
    }),
    ("join", &["list(string).() -> string", "list(string).(string) -> string"], |values| {
        let (list, between) = match values {
            [Value::List(list)] => (list, ""),
            [Value::List(list), Value::String(between)] => (list, &**between),
            _ => return Err(Fault::no_such_overload()),
        };
        let mut joined = String::new();
        for (index, item) in list.iter().enumerate() {
            let Some(text) = item.as_str() else {
                return Err(Fault::new(format!("join: invalid input: {item}")));
            };
            if index > 0 {
                joined.push_str(between);
            }
            joined.push_str(text);
        }
        Ok(joined.into())
    }),
];

fn one<'a>(values: &[Value<'a>], of: impl Fn(&str) -> String) -> EvaluationResult<'a> {
    match values {
        [Value::String(text)] => Ok(of(text).into()),
        _ => Err(Fault::no_such_overload()),
    }
}

fn two<'a>(values: &[Value<'a>], holds: impl Fn(&str, &str) -> bool) -> EvaluationResult<'a> {
    match values {
        [Value::String(text), Value::String(part)] => Ok(Value::Bool(holds(text, part))),
        _ => Err(Fault::no_such_overload()),
    }
}

/// Compiles a regular expression of bounded size.
pub fn pattern(text: &str) -> Result<Regex, regex::Error> {
    let text = machinery::regexp::from_go(text);
    regex::RegexBuilder::new(&text).size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN).build()
}

thread_local! {
    /// Recently used non-constant patterns, and the number of compilations in this evaluation.
    static COMPILED: RefCell<VecDeque<(String, Result<Regex, regex::Error>)>> = const { RefCell::new(VecDeque::new()) };
    static COMPILATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Starts an evaluation, which may compile [`MAX_COMPILATIONS`] patterns.
pub fn begin_evaluation() {
    COMPILATIONS.set(0);
}

/// Pattern of a non-constant text. A short text may take long to compile, so the number of distinct patterns is
/// limited; the evaluation cost only counts the length of texts.
fn dynamic(text: &str) -> Result<Result<Regex, regex::Error>, Fault> {
    let known = COMPILED.with_borrow(|known| {
        known.iter().find(|(pattern, _)| pattern == text).map(|(_, compiled)| compiled.clone())
    });
    if let Some(known) = known {
        return Ok(known);
    }
    if COMPILATIONS.get() >= MAX_COMPILATIONS {
        return Err(Fault::Cost);
    }
    COMPILATIONS.set(COMPILATIONS.get() + 1);
    let compiled = pattern(text);
    COMPILED.with_borrow_mut(|known| {
        known.truncate(MAX_CACHED - 1);
        known.push_front((text.to_owned(), compiled.clone()));
    });
    Ok(compiled)
}

fn legal(text: &str) -> Result<Regex, Fault> {
    dynamic(text)?.map_err(|why| Fault::new(format!("Illegal regex: {why}")))
}

/// First index of a substring, in characters.
fn index_of(text: &str, part: &str, from: usize) -> i64 {
    let start = text.char_indices().nth(from).map_or(text.len(), |(at, _)| at);
    let found = text.get(start..).and_then(|rest| rest.find(part));
    let characters = found.and_then(|at| text.get(..start + at)).map(|before| before.chars().count());
    characters.and_then(|count| i64::try_from(count).ok()).unwrap_or(-1)
}

/// Splits into at most so many parts; the last one has the rest.
fn split<'t>(text: &'t str, by: &str, limit: usize) -> Vec<&'t str> {
    if limit == 0 {
        return Vec::new();
    }
    if !by.is_empty() {
        return text.splitn(limit, by).collect();
    }
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if parts.len() + 1 == limit {
            break;
        }
        let (first, after) = rest.split_at(c.len_utf8());
        parts.push(first);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

fn substring<'a>(text: &str, start: i64, end: i64) -> EvaluationResult<'a> {
    if start > end {
        return Err(Fault::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let length = text.chars().count();
    let within = |at: i64| {
        list_index(&Value::Int(at))?
            .filter(|at| *at <= length)
            .ok_or_else(|| Fault::new(format!("index out of range: {at}")))
    };
    let (start, end) = (within(start)?, within(end)?);
    Ok(text.chars().skip(start).take(end - start).collect::<String>().into())
}

/// Quotes and escapes a text.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
