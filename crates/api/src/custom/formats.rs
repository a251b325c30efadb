//! String formats of schemas.

use super::patterns;
use base64::Engine;
use machinery::names::{parse_cidr_sloppy, parse_ip_sloppy};
use regex::Regex;
use std::net::IpAddr;
use std::sync::LazyLock;

/// A format by its name without dashes, and its predicate.
type Row = (&'static str, fn(&str) -> bool);

static ROWS: &[Row] = &[
    ("bsonobjectid", |text| text.len() == 24 && is_hex(text)),
    ("byte", |text| base64::engine::general_purpose::STANDARD.decode(text).is_ok()),
    ("cidr", |text| parse_cidr_sloppy(text).is_some()),
    ("creditcard", is_credit_card),
    ("date", |text| text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()),
    ("datetime", is_date_time),
    ("duration", is_duration),
    ("email", is_email),
    ("hexcolor", |text| {
        let digits = text.strip_prefix('#').unwrap_or(text);
        matches!(digits.len(), 3 | 6) && is_hex(digits)
    }),
    ("hostname", is_hostname),
    ("ipv4", |text| matches!(parse_ip_sloppy(text), Some(IpAddr::V4(_))) && !text.contains(':')),
    ("ipv6", |text| parse_ip_sloppy(text).is_some() && text.contains(':')),
    ("isbn", |text| is_isbn10(text) || is_isbn13(text)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("k8slongname", |text| text.len() <= 253 && matches("k8slongname", text)),
    ("k8sshortname", |text| text.len() <= 63 && matches("k8sshortname", text)),
    ("mac", |text| matches("mac", text)),
    ("password", |_| true),
    ("rgbcolor", |text| matches("rgbcolor", text)),
    ("ssn", |text| matches("ssn", text)),
    ("uri", is_request_uri),
    ("uuid", |text| matches("uuid", text)),
    ("uuid3", |text| matches("uuid3", text)),
    ("uuid4", |text| matches("uuid4", text)),
    ("uuid5", |text| matches("uuid5", text)),
];

const PATTERNS: &[(&str, &str)] = &[
    (
        "creditcard",
        r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$",
    ),
    ("hostname", r"^[a-zA-Z0-9\p{S}\p{L}](-?[a-zA-Z0-9\p{S}\p{L}]*)?$"),
    ("label", r"^[a-zA-Z0-9\p{S}\p{L}]([a-zA-Z0-9\-\p{S}\p{L}]*[a-zA-Z0-9\p{S}\p{L}])?$"),
    ("domain", r"^[a-zA-Z\p{L}]{2,}$"),
    ("k8slongname", r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
    ("k8sshortname", r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    (
        "mac",
        r"(?i)^([0-9a-f]{2}[:-]){5}[0-9a-f]{2}$|^([0-9a-f]{2}[:-]){7}[0-9a-f]{2}$|^([0-9a-f]{4}\.){2}[0-9a-f]{4}$|^([0-9a-f]{4}\.){3}[0-9a-f]{4}$",
    ),
    (
        "rgbcolor",
        r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
    ),
    ("ssn", r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
    ("uuid", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid3", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid4", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
    ("uuid5", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
];

static COMPILED: LazyLock<Vec<(&'static str, Option<Regex>)>> = LazyLock::new(|| {
    PATTERNS.iter().map(|(name, pattern)| (*name, patterns::compile(pattern).ok())).collect()
});

fn matches(name: &str, text: &str) -> bool {
    let row = COMPILED.iter().find(|(known, _)| *known == name);
    row.and_then(|(_, pattern)| pattern.as_ref()).is_some_and(|pattern| pattern.is_match(text))
}

/// Reports whether a text matches a format; `None` for unknown formats, which are not checked.
pub fn is_of(format: &str, text: &str) -> Option<bool> {
    let plain = format.replace('-', "");
    let (_, check) = ROWS.iter().find(|(name, _)| *name == plain)?;
    Some(check(text))
}

/// True if the format is known for strings.
pub fn is_known(format: &str) -> bool {
    is_of(format, "").is_some()
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn digits(text: &str, ignored: &[char]) -> Vec<u32> {
    text.chars().filter(|c| !ignored.contains(c)).map(|c| c.to_digit(10).unwrap_or(10)).collect()
}

/// One label, or labels with a top-level domain of letters.
fn is_hostname(text: &str) -> bool {
    let fits = match text.rsplit_once('.') {
        None => matches("hostname", text),
        Some((labels, domain)) => {
            matches("domain", domain) && labels.split('.').all(|label| matches("label", label))
        }
    };
    fits && text.len() <= 255 && text.split('.').all(|part| part.len() <= 63)
}

fn is_isbn10(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| !matches!(c, ' ' | '-')).collect();
    let Some((rest, last)) = plain.char_indices().next_back().map(|(at, last)| (&plain[..at], last)) else {
        return false;
    };
    let rest = digits(rest, &[]);
    let last = if matches!(last, 'X' | 'x') { Some(10) } else { last.to_digit(10) };
    let Some(last) = last.filter(|_| rest.len() == 9 && rest.iter().all(|digit| *digit < 10)) else {
        return false;
    };
    let sum: u32 =
        (1u32..).zip(&rest).map(|(digit_position, digit)| digit_position * digit).sum::<u32>() + 10 * last;
    sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = digits(text, &[' ', '-']);
    let sum: u32 = digits.iter().zip([1, 3].into_iter().cycle()).map(|(digit, weight)| digit * weight).sum();
    digits.len() == 13 && digits.iter().all(|digit| *digit < 10) && sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let plain: String = text.chars().filter(char::is_ascii_digit).collect();
    let doubled = |(digit_position, digit): (usize, u32)| match digit * 2 {
        _ if digit_position % 2 == 0 => digit,
        twice if twice > 9 => twice - 9,
        twice => twice,
    };
    let sum: u32 = digits(&plain, &[]).into_iter().rev().enumerate().map(doubled).sum();
    matches("creditcard", &plain) && sum.is_multiple_of(10)
}

/// RFC 3339, also in lower case; the hour is at most 23.
fn is_date_time(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let Some((date, time)) = lower.split_once('t') else { return false };
    let shape = |part: Option<&str>, most: &str| part.is_some_and(|part| part.len() == 2 && part <= most);
    let zone = time.find(['z', '+', '-']);
    let Some((clock, zone)) = zone.map(|at| time.split_at(at)) else { return false };
    let whole = clock.split('.').next().unwrap_or("");
    let mut parts = whole.split(':');
    let in_range = shape(parts.next(), "23") && shape(parts.next(), "59") && shape(parts.next(), "59");
    let zone_fits = zone == "z" || zone.len() == 6 && zone.as_bytes().get(3) == Some(&b':');
    date.len() == 10
        && date.parse::<jiff::civil::Date>().is_ok()
        && in_range
        && parts.next().is_none()
        && zone_fits
}

/// Go's durations, or numbers with the units of Scala's durations.
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 11] = ["ns", "nano", "us", "µs", "micro", "ms", "milli", "s", "m", "h", "d"];
    const LONG: [&str; 5] = ["sec", "min", "hr", "hour", "day"];
    if machinery::codec::time::parse_duration(text).is_ok() {
        return true;
    }
    let number = text.trim_start_matches(['+', '-']);
    let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let unit = number.get(digits..).unwrap_or("").trim().to_lowercase();
    let is_unit = UNITS.contains(&unit.as_str())
        || unit == "w"
        || LONG.iter().chain(&["week", "nano", "micro", "milli"]).any(|long| unit.starts_with(long));
    digits > 0 && is_unit
}

fn is_email(text: &str) -> bool {
    let address = match (text.rfind('<'), text.strip_suffix('>')) {
        (Some(at), Some(inner)) => inner.get(at + 1..).unwrap_or(""),
        _ => text.trim(),
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let is_atom = |text: &str| {
        let fits = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
        !text.is_empty() && text.split('.').all(|part| !part.is_empty() && part.chars().all(fits))
    };
    let is_quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    (is_atom(local) || is_quoted) && (is_atom(domain) || domain.starts_with('[') && domain.ends_with(']'))
}

/// An absolute URI, or an absolute path.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.contains(|c: char| c.is_ascii_control() || c == ' ') {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let mut chars = scheme.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_and_reject_texts() {
        assert!(PATTERNS.len() == COMPILED.iter().filter(|(_, pattern)| pattern.is_some()).count());
        for (format, good, bad) in [
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f1f77bcf86cd79943901"),
            ("byte", "aGk=", "a"),
            ("cidr", "10.0.0.0/8", "10.0.0.0"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("date", "2020-02-29", "2021-02-29"),
            ("date-time", "2020-01-01T00:00:00Z", "notadate"),
            ("date-time", "2020-01-01t23:59:59.5+01:00", "2020-01-01T24:00:00Z"),
            ("duration", "1h5m", "1x"),
            ("duration", "22 ns", ""),
            ("email", "a@b.c", "a b@c"),
            ("hexcolor", "#Fff", "#ffff"),
            ("hostname", "example.com", "-example.com"),
            ("ipv4", "10.0.0.1", "::1"),
            ("ipv6", "::1", "10.0.0.1"),
            ("isbn", "978-0321751041", "978-0321751042"),
            ("isbn10", "0321751043", "0321751044"),
            ("k8s-long-name", "a.b-c", "a..b"),
            ("k8s-short-name", "a-b", "A"),
            ("mac", "00:00:5e:00:53:01", "00:00:5e:00:53"),
            ("rgbcolor", "rgb(0, 255, 9)", "rgb(256,0,0)"),
            ("ssn", "111-11-1111", "111-11-111"),
            ("uri", "https://example.com/a", "a/b"),
            ("uuid", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "f47ac10b"),
            ("uuid4", "F47AC10B-58CC-4372-A567-0E02B2C3D479", "f47ac10b-58cc-5372-a567-0e02b2c3d479"),
        ] {
            assert_eq!(is_of(format, good), Some(true), "{format}: {good}");
            assert_eq!(is_of(format, bad), Some(false), "{format}: {bad}");
        }
        assert_eq!(is_of("password", "x"), Some(true));
        assert_eq!(is_of("strange", "x"), None);
        assert!(is_known("k8s-short-name") && !is_known("int32"));
    }
}
