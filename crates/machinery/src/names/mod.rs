//! Validation of names, labels, annotations and addresses, with Kubernetes' messages.
//!
//! Checks of a single string return error texts (none: valid); checks of a field or of a whole `metadata` return
//! field errors.

mod dns;
mod ip;
mod object_meta;
mod qualified;
mod semver;
mod text;

pub use dns::*;
pub use ip::*;
pub use object_meta::*;
pub use qualified::*;
pub use semver::SemanticVersion;
pub use text::*;

/// `must be no more than N characters`, the text of older checks (which count bytes too).
pub fn max_len_error(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// `must be no more than N bytes`, the text of labels and newer checks.
pub fn max_bytes_error(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

/// `must be between LOW and HIGH, inclusive`.
pub fn range_error(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// A rule as text, with examples and its pattern.
pub fn pattern_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let mut text = format!("{message} (e.g. ");
    for (i, example) in examples.iter().enumerate() {
        if i > 0 {
            text.push_str(" or ");
        }
        text.push('\'');
        text.push_str(example);
        text.push_str("', ");
    }
    text.push_str("regex used for validation is '");
    text.push_str(pattern);
    text.push_str("')");
    text
}

/// Reports whether every byte is of a class, and the first and last of (usually narrower) classes.
fn framed(text: &[u8], first: fn(u8) -> bool, middle: fn(u8) -> bool, last: fn(u8) -> bool) -> bool {
    match text {
        [] => false,
        [one] => first(*one),
        [a, inner @ .., z] => first(*a) && last(*z) && inner.iter().all(|b| middle(*b)),
    }
}

fn is_lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}
