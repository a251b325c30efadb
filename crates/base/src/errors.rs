//! Formatting of errors.

use std::error::Error;
use std::fmt::Display;

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

/// Text of a system error as Go words it, which users search for: lower case, without its number. Text before it is
/// unchanged.
#[must_use]
pub fn system(error: impl Display) -> String {
    let text = error.to_string();
    let Some((before, _)) = text.rsplit_once(" (os error ").filter(|_| text.ends_with(')')) else {
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
    fn system_error_has_words_of_go() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(system(&refused), "connection refused");
        assert_eq!(system(format!("open /A: {refused}")), "open /A: connection refused");
        assert_eq!(system(std::io::Error::other("No PATH")), "No PATH");
    }
}
