//! Semantic versions.

use super::Row;
use crate::value::{EvaluationResult, Fault, Value};
use std::cmp::Ordering;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    major: u64,
    minor: u64,
    patch: u64,
    before: Vec<Identifier>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    /// Numeric identifiers sort before alphanumeric ones.
    Number(u64),
    Alphanumeric(String),
}

impl Semver {
    /// Order of precedence; build metadata is ignored.
    pub fn compare(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch).cmp(&(other.major, other.minor, other.patch)).then_with(
            || match (self.before.is_empty(), other.before.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self.before.cmp(&other.before),
            },
        )
    }
}

pub const ROWS: &[Row] = &[
    ("semver", &["(string) -> Semver", "(string, bool) -> Semver"], |values| {
        let text = argument(values)?;
        parse(&text).map(|version| Value::Semver(Arc::new(version))).map_err(Fault::new)
    }),
    ("isSemver", &["(string) -> bool", "(string, bool) -> bool"], |values| {
        Ok(Value::Bool(parse(&argument(values)?).is_ok()))
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

fn part<'a>(values: &[Value<'a>], of: impl Fn(&Semver) -> u64) -> EvaluationResult<'a> {
    match values {
        [Value::Semver(version)] => Ok(Value::Int(i64::try_from(of(version)).unwrap_or(i64::MAX))),
        _ => Err(Fault::no_such_overload()),
    }
}

fn compared<'a>(values: &[Value<'a>], of: impl Fn(Ordering) -> Value<'a>) -> EvaluationResult<'a> {
    match values {
        [Value::Semver(a), Value::Semver(b)] => Ok(of(a.compare(b))),
        _ => Err(Fault::no_such_overload()),
    }
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {what} number {text:?}"));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{} number must not contain leading zeroes {text:?}", capitalized(what)));
    }
    text.parse().map_err(|_| format!("Invalid character(s) found in {what} number {text:?}"))
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

fn parse(text: &str) -> Result<Semver, String> {
    if text.is_empty() {
        return Err("Version string empty".to_owned());
    }
    let mut parts = text.splitn(3, '.');
    let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("No Major.Minor.Patch elements found".to_owned());
    };
    let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
    let (patch, before) = rest.split_once('-').map_or((rest, None), |(patch, before)| (patch, Some(before)));
    let is_alphanumeric = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let mut identifiers = Vec::new();
    for part in before.into_iter().flat_map(|before| before.split('.')) {
        if part.is_empty() {
            return Err("Prerelease is empty".to_owned());
        }
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            if part.len() > 1 && part.starts_with('0') {
                return Err(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
            }
            let number = part.parse().map_err(|_| format!("Invalid Prerelease number {part:?}"))?;
            identifiers.push(Identifier::Number(number));
        } else if is_alphanumeric(part) {
            identifiers.push(Identifier::Alphanumeric(part.to_owned()));
        } else {
            return Err(format!("Invalid character(s) found in prerelease {part:?}"));
        }
    }
    for part in build.into_iter().flat_map(|build| build.split('.')) {
        if part.is_empty() {
            return Err("Build meta data is empty".to_owned());
        }
        if !is_alphanumeric(part) {
            return Err(format!("Invalid character(s) found in build meta data {part:?}"));
        }
    }
    Ok(Semver {
        major: number(major, "major")?,
        minor: number(minor, "minor")?,
        patch: number(patch, "patch")?,
        before: identifiers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_precedence() {
        let ascending =
            ["0.1.0", "1.0.0-1", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0", "1.2.3", "1.10.0"];
        for pair in ascending.windows(2) {
            let [a, b] = pair else { continue };
            let (a, b) = (parse(a).expect(a), parse(b).expect(b));
            assert_eq!(a.compare(&b), Ordering::Less, "{a:?} {b:?}");
        }
        for wrong in ["", "1", "1.2", "v1.2.3", "1.2.03", "1.2.3-", "1.2.x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(normalized("v01.2"), "1.2.0");
    }
}
