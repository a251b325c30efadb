//! Resolution of plain scalars in YAML 1.1.

/// Resolved value of a scalar.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Resolved {
    Null,
    Bool(bool),
    Integer(i64),
    /// Above the range of signed numbers.
    Large(u64),
    Float(f64),
    Merge,
    Text,
}

/// Resolves an unquoted scalar without a tag.
pub(super) fn resolve(text: &str) -> Resolved {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Resolved::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Resolved::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Resolved::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Resolved::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Resolved::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Resolved::Float(f64::NEG_INFINITY),
        "<<" => return Resolved::Merge,
        _ => {}
    }
    match text.as_bytes()[0] {
        b'.' => decimal(text).map_or(Resolved::Text, Resolved::Float),
        b'+' | b'-' | b'0'..=b'9' => number(&text.replace('_', "")),
        _ => Resolved::Text,
    }
}

fn number(text: &str) -> Resolved {
    let (negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    if let Some(magnitude) = integer(digits) {
        if let Ok(value) =
            i64::try_from(if negative { -i128::from(magnitude) } else { i128::from(magnitude) })
        {
            return Resolved::Integer(value);
        }
        if digits.len() == text.len() {
            return Resolved::Large(magnitude);
        }
    }
    decimal(text).map_or(Resolved::Text, Resolved::Float)
}

/// Digits with the prefixes of Go's integer literals: `0x`, `0o`, `0b`, and a plain `0` for octal.
fn integer(digits: &str) -> Option<u64> {
    let prefixed = |rest: &str, radix| {
        let plain = !rest.is_empty() && !rest.starts_with(['+', '-']);
        if plain { u64::from_str_radix(rest, radix).ok() } else { None }
    };
    match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => prefixed(&digits[2..], 16),
        [b'0', b'o' | b'O', ..] => prefixed(&digits[2..], 8),
        [b'0', b'b' | b'B', ..] => prefixed(&digits[2..], 2),
        [b'0', _, ..] => prefixed(&digits[1..], 8),
        _ => prefixed(digits, 10),
    }
}

/// A decimal number with a point, an exponent, or both.
fn decimal(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let shaped = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
        && digits.bytes().any(|b| b.is_ascii_digit())
        && !digits.starts_with(['e', 'E']);
    if shaped { text.parse().ok().filter(|number: &f64| number.is_finite()) } else { None }
}

/// Base-60 numbers are not decoded as such, but quoted for readers that do.
pub(super) fn is_base_60(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut parts = digits.split(':');
    let first = parts.next().unwrap_or("");
    let shaped = first.starts_with(|c: char| c.is_ascii_digit())
        && first.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let mut rest: Vec<&str> = parts.collect();
    let Some(last) = rest.pop() else {
        return false;
    };
    let sixtieth = |part: &str| match part.as_bytes() {
        [a] => a.is_ascii_digit(),
        [a, b] => (b'0'..=b'5').contains(a) && b.is_ascii_digit(),
        _ => false,
    };
    let (last, fraction) = last.split_once('.').unwrap_or((last, ""));
    shaped
        && rest.iter().all(|part| sixtieth(part))
        && sixtieth(last)
        && fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// A date or time, which is decoded as text but quoted when written.
pub(super) fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() < 5 || !bytes[..4].iter().all(u8::is_ascii_digit) || bytes[4] != b'-' {
        return false;
    }
    let Some((month, rest)) = text[5..].split_once('-') else {
        return false;
    };
    let small = |part: &str, max: u8| {
        (1..=2).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_digit())
            && part.parse::<u8>().is_ok_and(|n| n <= max)
    };
    let (day, time) = match rest.find(['T', 't', ' ']) {
        Some(at) => (&rest[..at], Some(&rest[at..])),
        None => (rest, None),
    };
    if !small(month, 12) || !small(day, 31) || month.parse() == Ok(0u8) || day.parse() == Ok(0u8) {
        return false;
    }
    let Some(time) = time else {
        return true;
    };
    let (clock, zoned) = match time[1..].find(['Z', '+', '-']) {
        Some(at) => (&time[1..=at], Some(&time[1 + at..])),
        None => (&time[1..], None),
    };
    let zone = match (time.starts_with(' '), zoned) {
        (true, zone) => zone.is_none(),
        (false, Some("Z")) => true,
        (false, Some(offset)) => offset.len() == 6 && offset.as_bytes()[3] == b':',
        (false, None) => false,
    };
    let (clock, fraction) =
        clock.split_once('.').map_or((clock, None), |(clock, fraction)| (clock, Some(fraction)));
    let parts: Vec<&str> = clock.split(':').collect();
    zone && parts.len() == 3
        && small(parts[0], 23)
        && small(parts[1], 59)
        && small(parts[2], 59)
        && fraction.is_none_or(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_resolve_by_yaml_1_1() {
        for (text, want) in [
            ("yes", Resolved::Bool(true)),
            ("Off", Resolved::Bool(false)),
            ("~", Resolved::Null),
            ("0755", Resolved::Integer(493)),
            ("0o17", Resolved::Integer(15)),
            ("0x1F", Resolved::Integer(31)),
            ("-0b11", Resolved::Integer(-3)),
            ("1_000", Resolved::Integer(1000)),
            ("+5", Resolved::Integer(5)),
            ("08", Resolved::Float(8.0)),
            ("1e3", Resolved::Float(1000.0)),
            (".5", Resolved::Float(0.5)),
            ("18446744073709551615", Resolved::Large(u64::MAX)),
            ("1.2.3", Resolved::Text),
            ("1e400", Resolved::Text),
            ("0x", Resolved::Text),
            ("1:30", Resolved::Text),
            ("2001-01-01", Resolved::Text),
            ("-", Resolved::Text),
            (".", Resolved::Text),
            ("nope", Resolved::Text),
        ] {
            assert_eq!(resolve(text), want, "{text}");
        }
        assert!(is_base_60("1:30") && !is_base_60("1:90") && is_base_60("190:20:30.15"));
        assert!(is_timestamp("2001-01-01") && is_timestamp("2001-1-1T1:2:3Z") && !is_timestamp("2001-13-01"));
    }
}
