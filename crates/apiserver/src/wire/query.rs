//! The query string, decoded once, parsed with the API's own rules for booleans and integers.

use machinery::status::{Result, Status};
use percent_encoding::percent_decode_str;

#[derive(Clone, Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = query
            .unwrap_or("")
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(key), decode(value))
            })
            .collect();
        Self { pairs }
    }

    /// The first value of a parameter; `None` when it is absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of a parameter, empty when absent.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or("")
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Anything but `false` and `0` is true, also an empty value: the API's own rule.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| !matches!(value.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => parse_int(text).map(Some).map_err(Status::bad_request),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

/// Parses as Go does, with its error texts.
fn parse_int(text: &str) -> Result<i64, String> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let why = match error.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseInt: parsing {text:?}: {why}")
    })
}

/// Parses an unsigned resource version as Go does, with its error texts.
pub fn parse_uint(text: &str) -> Result<u64, String> {
    if text.starts_with('+') {
        return Err(format!("strconv.ParseUint: parsing {text:?}: invalid syntax"));
    }
    text.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            std::num::IntErrorKind::PosOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseUint: parsing {text:?}: {why}")
    })
}

fn decode(text: &str) -> String {
    if !text.contains(['+', '%']) {
        return text.to_owned();
    }
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_parse_like_kubernetes() {
        let query = Query::parse(Some("watch=maybe&limit=3&a=%3Db+c&x&limit=9&off=FALSE"));
        assert_eq!(query.flag("watch"), Some(true));
        assert_eq!(query.flag("x"), Some(true));
        assert_eq!(query.flag("off"), Some(false));
        assert_eq!(query.flag("none"), None);
        assert_eq!(query.integer("limit").unwrap(), Some(3));
        assert_eq!(query.text("a"), "=b c");
        let error = Query::parse(Some("limit=abc")).integer("limit").unwrap_err();
        assert_eq!(error.message, "strconv.ParseInt: parsing \"abc\": invalid syntax");
    }
}
