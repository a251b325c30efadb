//! DNS names.

use super::{framed, is_lower_alnum, max_bytes_error, max_len_error, pattern_error};
use crate::field::{ErrorList, FieldError, Path};

pub const DNS_LABEL_MAX: usize = 63;
pub const DNS_SUBDOMAIN_MAX: usize = 253;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";

fn label_ok(text: &[u8]) -> bool {
    framed(text, is_lower_alnum, |b| b == b'-' || is_lower_alnum(b), is_lower_alnum)
}

fn label_1035_ok(text: &[u8]) -> bool {
    framed(text, |b| b.is_ascii_lowercase(), |b| b == b'-' || is_lower_alnum(b), is_lower_alnum)
}

fn subdomain_ok(text: &[u8]) -> bool {
    text.split(|b| *b == b'.').all(label_ok)
}

fn underscore_label_ok(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"_").unwrap_or(text);
    framed(text, is_lower_alnum, |b| b == b'-' || b == b'_' || is_lower_alnum(b), is_lower_alnum)
}

/// A prefix may end in a dash, since generateName appends a suffix.
fn mask_trailing_dash(name: &str, prefix: bool) -> std::borrow::Cow<'_, [u8]> {
    let bytes = name.as_bytes();
    if prefix && bytes.len() > 1 && bytes.ends_with(b"-") {
        let mut masked = bytes[..bytes.len() - 2].to_vec();
        masked.push(b'a');
        return masked.into();
    }
    bytes.into()
}

fn label_errors(text: &[u8]) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS_LABEL_MAX {
        errors.push(max_len_error(DNS_LABEL_MAX));
    }
    if !label_ok(text) {
        if subdomain_ok(text) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(pattern_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    errors
}

fn subdomain_errors(text: &[u8], too_long: fn(usize) -> String) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS_SUBDOMAIN_MAX {
        errors.push(too_long(DNS_SUBDOMAIN_MAX));
    }
    if !subdomain_ok(text) {
        errors.push(pattern_error(SUBDOMAIN_MESSAGE, SUBDOMAIN, &["example.com"]));
    }
    errors
}

/// Rejects strings that are not DNS-1123 labels; `prefix` allows a trailing dash (generateName).
///
/// ```
/// use machinery::names::dns_label;
///
/// assert!(dns_label("web-1", false).is_empty());
/// assert_eq!(dns_label("Web", false).len(), 1);
/// assert!(dns_label("web-", true).is_empty());
/// ```
pub fn dns_label(name: &str, prefix: bool) -> Vec<String> {
    label_errors(&mask_trailing_dash(name, prefix))
}

/// Rejects strings that are not DNS subdomains; `prefix` allows a trailing dash (generateName).
pub fn dns_subdomain(name: &str, prefix: bool) -> Vec<String> {
    subdomain_errors(&mask_trailing_dash(name, prefix), max_len_error)
}

/// The same rule with the wording of declarative validation (`bytes` instead of `characters`).
pub fn dns_subdomain_in_bytes(name: &str) -> Vec<String> {
    subdomain_errors(name.as_bytes(), max_bytes_error)
}

/// Rejects strings that are not DNS-1035 labels (starting with a letter); `prefix` allows a trailing dash.
pub fn dns1035_label(name: &str, prefix: bool) -> Vec<String> {
    let text = mask_trailing_dash(name, prefix);
    let mut errors = Vec::new();
    if text.len() > DNS_LABEL_MAX {
        errors.push(max_len_error(DNS_LABEL_MAX));
    }
    if !label_1035_ok(&text) {
        errors.push(pattern_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// A subdomain whose labels may have underscores (search domains).
pub fn dns_subdomain_with_underscore(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > DNS_SUBDOMAIN_MAX {
        errors.push(max_len_error(DNS_SUBDOMAIN_MAX));
    }
    if !name.as_bytes().split(|b| *b == b'.').all(underscore_label_ok) {
        errors.push(pattern_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    errors
}

/// `*.` and a subdomain.
pub fn wildcard_dns_subdomain(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > DNS_SUBDOMAIN_MAX {
        errors.push(max_len_error(DNS_SUBDOMAIN_MAX));
    }
    if !name.strip_prefix("*.").is_some_and(|rest| subdomain_ok(rest.as_bytes())) {
        errors.push(pattern_error(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!(r"\*\.{SUBDOMAIN}"),
            &["*.example.com"],
        ));
    }
    errors
}

/// A subdomain of at least three labels.
pub fn fully_qualified_name(path: &Path<'_>, name: &str) -> ErrorList {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let errors = dns_subdomain(name, false);
    if !errors.is_empty() {
        return vec![FieldError::invalid_str(path, name, errors.join(","))];
    }
    if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        return vec![FieldError::invalid_str(path, name, detail)];
    }
    Vec::new()
}

/// A subdomain of at least two DNS labels; one trailing dot is allowed.
pub fn fully_qualified_domain_name(path: &Path<'_>, name: &str) -> ErrorList {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let errors = dns_subdomain(name, false);
    if !errors.is_empty() {
        return vec![FieldError::invalid_str(path, name, errors.join(","))];
    }
    if name.split('.').count() < 2 {
        let detail = "should be a domain with at least two segments separated by dots";
        return vec![FieldError::invalid_str(path, name, detail)];
    }
    for label in name.split('.') {
        let errors = dns_label(label, false);
        if !errors.is_empty() {
            return vec![FieldError::invalid_str(path, label, errors.join(","))];
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_are_validated() {
        for good in ["a", "a-b", "0a", "a0-9z"] {
            assert!(dns_label(good, false).is_empty(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "é"] {
            assert_eq!(dns_label(bad, false).len(), 1, "{bad}");
        }
        assert_eq!(dns_label("a.b", false), ["must not contain dots"]);
        assert!(dns_subdomain("a.b-c.d", false).is_empty());
        assert!(dns_subdomain("gen-", true).is_empty());
        assert_eq!(dns_subdomain("gen-", false).len(), 1);
        assert_eq!(dns_subdomain("a..b", false).len(), 1);
        assert_eq!(dns_subdomain(&"a".repeat(254), false), ["must be no more than 253 characters"]);
        assert_eq!(dns1035_label("0a", false).len(), 1);
        assert!(wildcard_dns_subdomain("*.a.b").is_empty());
        assert_eq!(wildcard_dns_subdomain("a.b").len(), 1);
        // A multi-byte character before the dash must not be split.
        assert_eq!(dns_subdomain("é-", true).len(), 1);
    }

    #[test]
    fn invalid_subdomain_message_matches_kubernetes() {
        assert_eq!(
            dns_subdomain("Bad_Name!", false)[0],
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        );
    }
}
