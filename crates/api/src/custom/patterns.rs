//! Regular expressions of schemas, and what is wrong with them in Kubernetes' words.

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{self, ErrorKind};
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

/// The largest program that a pattern may become.
const MAX_SIZE: usize = 4 * 1024 * 1024;
/// Limits of the valid patterns that are remembered: how many, and the length of one.
const MAX_REMEMBERED: usize = 1024;
const MAX_REMEMBERED_LENGTH: usize = 1024;

/// Pattern of a schema, compiled when it is first used: a compiled expression takes far more memory than its text.
#[derive(Debug)]
pub struct Pattern {
    text: Box<str>,
    compiled: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), compiled: OnceLock::new() }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Matches a text. The error says why the pattern is invalid.
    pub fn matches(&self, text: &str) -> Result<bool, &str> {
        let compiled = self.compiled.get_or_init(|| compile(&self.text));
        compiled.as_ref().map(|pattern| pattern.is_match(text)).map_err(String::as_str)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Reports why a text is no pattern. Definitions repeat patterns, and compiling one takes longer than the rest of the
/// checks of its field: valid ones are remembered.
pub fn check(pattern: &str) -> Result<(), String> {
    static VALID: LazyLock<Mutex<HashSet<Box<str>>>> = LazyLock::new(Mutex::default);
    if VALID.lock().unwrap_or_else(PoisonError::into_inner).contains(pattern) {
        return Ok(());
    }
    compile(pattern)?;
    if pattern.len() <= MAX_REMEMBERED_LENGTH {
        let mut valid = VALID.lock().unwrap_or_else(PoisonError::into_inner);
        if valid.len() >= MAX_REMEMBERED {
            valid.clear();
        }
        valid.insert(pattern.into());
    }
    Ok(())
}

/// A pattern, or why it is none.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    let translated = machinery::regexp::from_go(pattern);
    let built = RegexBuilder::new(&translated).size_limit(MAX_SIZE).dfa_size_limit(MAX_SIZE).build();
    built.map_err(|error| {
        let why = match &error {
            regex::Error::CompiledTooBig(_) => "expression too large".to_owned(),
            _ => explain(pattern).unwrap_or_else(|| format!("invalid expression: `{pattern}`")),
        };
        format!("error parsing regexp: {why}")
    })
}

fn explain(pattern: &str) -> Option<String> {
    let error = ast::parse::Parser::new().parse(pattern).err()?;
    let span = error.span();
    let at = pattern.get(span.start.offset..span.end.offset).unwrap_or("");
    let from = pattern.get(span.start.offset..).unwrap_or("");
    let (why, shown) = match error.kind() {
        ErrorKind::GroupUnclosed => ("missing closing )", pattern),
        ErrorKind::GroupUnopened => ("unexpected )", pattern),
        ErrorKind::ClassUnclosed => ("missing closing ]", from),
        ErrorKind::ClassRangeInvalid | ErrorKind::ClassRangeLiteral => ("invalid character class range", at),
        ErrorKind::EscapeUnexpectedEof => ("trailing backslash at end of expression", ""),
        ErrorKind::EscapeUnrecognized
        | ErrorKind::EscapeHexEmpty
        | ErrorKind::EscapeHexInvalid
        | ErrorKind::EscapeHexInvalidDigit
        | ErrorKind::UnsupportedBackreference => ("invalid escape sequence", at),
        ErrorKind::RepetitionMissing => {
            ("missing argument to repetition operator", from.get(..1).unwrap_or(""))
        }
        ErrorKind::RepetitionCountInvalid => ("invalid repeat count", at),
        ErrorKind::GroupNameInvalid | ErrorKind::GroupNameEmpty | ErrorKind::GroupNameUnexpectedEof => {
            ("invalid named capture", from)
        }
        ErrorKind::UnsupportedLookAround
        | ErrorKind::FlagUnrecognized
        | ErrorKind::FlagUnexpectedEof
        | ErrorKind::FlagRepeatedNegation { .. } => ("invalid or unsupported Perl syntax", at),
        _ => return None,
    };
    Some(format!("{why}: `{shown}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_explained() {
        for (pattern, why) in [
            ("(", "missing closing ): `(`"),
            ("a)", "unexpected ): `a)`"),
            ("[a", "missing closing ]: `[a`"),
            ("*", "missing argument to repetition operator: `*`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ] {
            assert_eq!(compile(pattern).unwrap_err(), format!("error parsing regexp: {why}"), "{pattern}");
        }
        assert!(compile("^[a-z]+$").is_ok());
        for _ in 0..2 {
            assert_eq!(check("^[a-z]+$"), Ok(()));
            assert_eq!(check("("), Err("error parsing regexp: missing closing ): `(`".to_owned()));
        }
    }

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, text, want) in [
            (r"^\w+$", "abc_1", true),
            (r"^\w+$", "ä", false),
            (r"^\d$", "٣", false),
            (r"^[[]x$", "[x", true),
            (r"^{a}$", "{a}", true),
            (r"^[^\s]+$", "a b", false),
            (r"^\Qa.b\E$", "axb", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), Ok(want), "{pattern} on {text}");
        }
    }
}
