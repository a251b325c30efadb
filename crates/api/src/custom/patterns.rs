//! Regular expressions of schemas, and their errors with Kubernetes' messages.

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{self, ErrorKind};
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

/// Size limit of a compiled pattern.
const MAX_SIZE: usize = 4 * 1024 * 1024;
/// Limits of the cache of valid patterns: number of entries, and length of one.
const MAX_CACHED: usize = 1024;
const MAX_CACHED_LENGTH: usize = 1024;

/// Pattern of a schema, compiled on first use: a compiled expression takes far more memory than its text.
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

    /// Matches a text. The error is that of an invalid pattern.
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

/// Error of an invalid pattern. Definitions repeat patterns, and compiling one takes longer than the other checks of
/// its field, so valid ones are cached.
pub fn check(pattern: &str) -> Result<(), String> {
    static VALID: LazyLock<Mutex<HashSet<Box<str>>>> = LazyLock::new(Mutex::default);
    if VALID.lock().unwrap_or_else(PoisonError::into_inner).contains(pattern) {
        return Ok(());
    }
    compile(pattern)?;
    if pattern.len() <= MAX_CACHED_LENGTH {
        let mut valid = VALID.lock().unwrap_or_else(PoisonError::into_inner);
        if valid.len() >= MAX_CACHED {
            valid.clear();
        }
        valid.insert(pattern.into());
    }
    Ok(())
}

/// Compiles a pattern.
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
    fn invalid_patterns_return_go_errors() {
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
