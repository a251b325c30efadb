//! Formatting of errors.

use std::error::Error;
use std::fmt::Display;

/// Text in front of the number of a system error.
pub(crate) const NUMBER: &str = " (os error ";

/// An error with everything that caused it, on one line.
///
/// ```
/// use std::io::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::NotFound, "no store");
/// assert_eq!(base::errors::chain(&error), "no store");
/// ```
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Text without the numbers of system errors, ` (os error 2)`, which Go does not print.
#[must_use]
pub fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(NUMBER) {
        out.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        match after.get(end..).and_then(|tail| tail.strip_prefix(')')) {
            Some(tail) if end > 0 => rest = tail,
            _ => {
                out.push_str(NUMBER);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Text of a system error as Go words it, which users search for: lower case, without its number. Text before it is
/// unchanged.
#[must_use]
pub fn system(error: impl Display) -> String {
    let text = error.to_string();
    let Some((before, _)) = text.rsplit_once(NUMBER).filter(|_| text.ends_with(')')) else {
        return text;
    };
    match before.rsplit_once(": ") {
        Some((step, reason)) => format!("{step}: {}", reason.to_lowercase()),
        None => before.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_system_errors_are_removed() {
        let refused = std::io::Error::from_raw_os_error(111).to_string();
        for (text, want) in [
            (format!("connect: {refused}"), "connect: Connection refused"),
            (format!("{refused}: {refused}\n"), "Connection refused: Connection refused\n"),
            ("no (os error x) here (os error ".to_owned(), "no (os error x) here (os error "),
        ] {
            assert_eq!(without_numbers(&text), want);
        }
    }

    #[test]
    fn system_error_has_words_of_go() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(system(&refused), "connection refused");
        assert_eq!(system(format!("open /A: {refused}")), "open /A: connection refused");
        assert_eq!(system(std::io::Error::other("No PATH")), "No PATH");
    }
}
