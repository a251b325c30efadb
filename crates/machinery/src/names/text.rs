//! Names with specific formats: path segments, environment variables, ports, percentages, HTTP headers.

use super::{DNS_SUBDOMAIN_MAX, framed, max_len_error, pattern_error, range_error};

/// A name that can be one segment of a URL's path; `prefix` skips checks that a longer name may pass.
pub fn path_segment_name(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].iter().filter(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A canonical decimal integer: no plus, no leading zeros.
pub fn decimal_integer(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["must be non-empty".to_owned()];
    }
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    let canonical = match digits {
        [b'0'] => !text.starts_with('-'),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if canonical { Vec::new() } else { vec!["must be a valid decimal integer in canonical form".to_owned()] }
}

pub fn c_identifier(text: &str) -> Vec<String> {
    let is_word_byte = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if framed(text.as_bytes(), |b| b.is_ascii_alphabetic() || b == b'_', is_word_byte, is_word_byte) {
        return Vec::new();
    }
    vec![pattern_error(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// Name of an environment variable: printable ASCII without `=`.
pub fn relaxed_env_var_name(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if text.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'=') {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .to_owned(),
    ]
}

/// Keys of ConfigMaps and Secrets.
pub fn config_map_key(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS_SUBDOMAIN_MAX {
        errors.push(max_len_error(DNS_SUBDOMAIN_MAX));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if text.is_empty() || !text.bytes().all(allowed) {
        errors.push(pattern_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    errors.extend(dot_dot(text));
    errors
}

fn dot_dot(text: &str) -> Option<String> {
    match text {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if text.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// IANA service names.
pub fn port_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push(max_len_error(15));
    }
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.is_empty() || !text.bytes().all(allowed) {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

/// User and group ids.
pub fn user_id(id: i64) -> Vec<String> {
    in_range(id, 0, i64::from(i32::MAX))
}

pub fn in_range(value: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&value) { Vec::new() } else { vec![range_error(low, high)] }
}

pub fn percent(text: &str) -> Vec<String> {
    let digits = text.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Vec::new();
    }
    vec![pattern_error(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

pub fn http_header_name(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![pattern_error(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// The `reason` of a `metav1.Condition`.
pub fn condition_reason(text: &str) -> Vec<String> {
    let last = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let middle = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':');
    if framed(text.as_bytes(), |b| b.is_ascii_alphabetic(), middle, last) {
        return Vec::new();
    }
    vec![pattern_error(
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_formats_are_validated() {
        type Check = fn(&str) -> Vec<String>;
        let table: &[(Check, &[&str], &[&str])] = &[
            (c_identifier, &["a", "_A1"], &["", "1a", "a-b"]),
            (relaxed_env_var_name, &["1 a!", "a"], &["", "a=b", "é", "a\tb"]),
            (config_map_key, &["a.b", "-"], &["", ".", "..", "..a", "a b"]),
            (port_name, &["http", "h-2"], &["", "1", "a--b", "-a", "a-", "A", "abcdefghijklmnop"]),
            (percent, &["0%", "93%"], &["", "%", "1", "a%"]),
            (http_header_name, &["X-Y"], &["", "a b"]),
            (decimal_integer, &["0", "-1", "10"], &["", "-0", "01", "+1", "1a", "-"]),
            (condition_reason, &["A", "A,b:c_"], &["", "1", "A:"]),
        ];
        for (check, good, bad) in table {
            for text in *good {
                assert!(check(text).is_empty(), "{text}: {:?}", check(text));
            }
            for text in *bad {
                assert!(!check(text).is_empty(), "{text}");
            }
        }
        assert_eq!(path_segment_name("..", false), ["may not be '..'"]);
        assert!(path_segment_name("..", true).is_empty());
        assert_eq!(path_segment_name("a/b%", false), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(port_number(0), ["must be between 1 and 65535, inclusive"]);
    }
}
