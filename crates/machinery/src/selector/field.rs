//! Field selectors: `metadata.name=a,status.phase!=Running`.

use super::ParseError;
use std::fmt;

/// One comparison of a field with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub field: String,
    pub value: String,
    pub equal: bool,
}

/// A conjunction of terms; without terms it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    pub terms: Vec<Term>,
}

impl FieldSelector {
    /// Parses a selector from a query; backslash escapes `\`, `,` and `=` in values.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::with_capacity(parts.len());
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            let Some((field, equal, value)) = split_term(part) else {
                return Err(ParseError(format!("invalid selector: '{text}'; can't understand '{part}'")));
            };
            terms.push(Term { field: field.to_owned(), value: unescape(value)?, equal });
        }
        Ok(Self { terms })
    }

    /// The selector `field=value`.
    pub fn one(field: &str, value: &str) -> Self {
        Self { terms: vec![Term { field: field.to_owned(), value: value.to_owned(), equal: true }] }
    }

    /// An absent field equals the empty string.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().all(|t| (lookup(&t.field).unwrap_or("") == t.value) == t.equal)
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that a field must have, if a term requires one.
    pub fn requires(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.equal && t.field == field).map(|t| t.value.as_str())
    }

    /// Rewrites every term's field and value; a term that becomes empty is dropped.
    pub fn transform<E>(
        self,
        mut rewrite: impl FnMut(String, String) -> Result<(String, String), E>,
    ) -> Result<Self, E> {
        let mut terms = Vec::with_capacity(self.terms.len());
        for term in self.terms {
            let (field, value) = rewrite(term.field, term.value)?;
            if !field.is_empty() || !value.is_empty() {
                terms.push(Term { field, value, equal: term.equal });
            }
        }
        Ok(Self { terms })
    }

    /// Rejects fields that the kind does not support; the caller creates the error for the first one.
    pub fn unsupported(&self, supported: impl Fn(&str) -> bool) -> Option<&str> {
        self.terms.iter().map(|t| t.field.as_str()).find(|f| !supported(f))
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let operator = if term.equal { "=" } else { "!=" };
            let separator = if i > 0 { "," } else { "" };
            write!(f, "{separator}{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, b) in text.bytes().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Field, true for equality, value. The first operator splits.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let bytes = term.as_bytes();
    for (i, b) in bytes.iter().enumerate() {
        let next = bytes.get(i + 1);
        match b {
            b'!' if next == Some(&b'=') => return Some((&term[..i], false, &term[i + 2..])),
            b'=' if next == Some(&b'=') => return Some((&term[..i], true, &term[i + 2..])),
            b'=' => return Some((&term[..i], true, &term[i + 1..])),
            _ => {}
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, ParseError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    return Err(ParseError(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    )));
                }
            },
            // Kubernetes prints the character's number here.
            ',' | '=' => {
                return Err(ParseError(format!(
                    "invalid field selector: unescaped character in value: {}",
                    c as u32
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Escapes characters of a value that parsing would treat as syntax.
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn field_selectors_are_parsed() {
        for (text, want) in [
            ("", ""),
            ("a=b", "a=b"),
            ("a==b", "a=b"),
            ("z=1,a!=2,", "a!=2,z=1"),
            (r"a=x\,y\=z\\", r"a=x\,y\=z\\"),
            ("a=", "a="),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap().to_string(), want, "{text}");
        }
        for (text, want) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), want, "{text}");
        }
    }

    #[test]
    fn field_selector_matches_and_returns_required_value() {
        let selector = FieldSelector::parse("metadata.name=x,status.phase!=Running").unwrap();
        assert!(selector.matches(|f| (f == "metadata.name").then_some("x")));
        assert!(!selector.matches(|f| Some(if f == "metadata.name" { "x" } else { "Running" })));
        assert_eq!(selector.requires("metadata.name"), Some("x"));
        assert_eq!(selector.requires("status.phase"), None);
        assert_eq!(selector.unsupported(|f| f == "metadata.name"), Some("status.phase"));
    }

    proptest! {
        #[test]
        fn field_selector_of_any_text_round_trips(text in "\\PC{0,30}") {
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert_eq!(FieldSelector::parse(&selector.to_string()).map(|s| s.terms.len()), Ok(selector.terms.len()));
            }
        }
    }
}
