//! Semantic versions.

use super::Row;
use crate::value::{EvaluationResult, Fault, Value};
use machinery::names::SemanticVersion;
use std::cmp::Ordering;
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("semver", &["(string) -> Semver", "(string, bool) -> Semver"], |values| {
        let text = argument(values)?;
        SemanticVersion::parse(&text).map(|version| Value::Semver(Arc::new(version))).map_err(Fault::new)
    }),
    ("isSemver", &["(string) -> bool", "(string, bool) -> bool"], |values| {
        Ok(Value::Bool(SemanticVersion::parse(&argument(values)?).is_ok()))
    }),
    ("isGreaterThan", &["Semver.(Semver) -> bool"], |values| {
        compared(values, |order| Value::Bool(order == Ordering::Greater))
    }),
    ("isLessThan", &["Semver.(Semver) -> bool"], |values| {
        compared(values, |order| Value::Bool(order == Ordering::Less))
    }),
    ("compareTo", &["Semver.(Semver) -> int"], |values| compared(values, |order| Value::Int(order as i64))),
    ("major", &["Semver.() -> int"], |values| part(values, |version| version.major)),
    ("minor", &["Semver.() -> int"], |values| part(values, |version| version.minor)),
    ("patch", &["Semver.() -> int"], |values| part(values, |version| version.patch)),
];

/// The text, normalized if requested.
fn argument(values: &[Value<'_>]) -> Result<String, Fault> {
    match values {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Ok((**text).to_owned()),
        [Value::String(text), Value::Bool(true)] => Ok(normalized(text)),
        _ => Err(Fault::no_such_overload()),
    }
}

/// Normalizes a version: no `v` prefix or leading zeros, all three numbers. Other texts are returned unchanged, and
/// are invalid.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let regular = |part: &str| {
        if part.len() <= 1 {
            return part.to_owned();
        }
        let stripped = part.trim_start_matches('0');
        let zero = if stripped.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "0" };
        format!("{zero}{stripped}")
    };
    let mut parts: Vec<String> = text.splitn(3, '.').map(regular).collect();
    if parts.len() < 3 && !parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        parts.resize(3, "0".to_owned());
    }
    parts.join(".")
}

fn part<'a>(values: &[Value<'a>], of: impl Fn(&SemanticVersion) -> u64) -> EvaluationResult<'a> {
    match values {
        [Value::Semver(version)] => Ok(Value::Int(i64::try_from(of(version)).unwrap_or(i64::MAX))),
        _ => Err(Fault::no_such_overload()),
    }
}

fn compared<'a>(values: &[Value<'a>], of: impl Fn(Ordering) -> Value<'a>) -> EvaluationResult<'a> {
    match values {
        [Value::Semver(a), Value::Semver(b)] => Ok(of(a.cmp(b))),
        _ => Err(Fault::no_such_overload()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalization_completes_numbers() {
        assert_eq!(normalized("v01.2"), "1.2.0");
    }
}
