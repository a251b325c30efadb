//! Times and durations in Go's formats, with its error texts.

use std::fmt::Write as _;

/// Seconds since the epoch and nanoseconds within the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant {
    pub seconds: i64,
    pub nanos: u32,
}

/// Year 1, Go's zero time.
pub const ZERO: Instant = Instant { seconds: -62_135_596_800, nanos: 0 };

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Parses RFC 3339; `micros` requires exactly six digits of fraction, else any fraction is accepted.
pub fn parse(text: &str, micros: bool) -> Result<Instant, String> {
    let layout = if micros { MICROS } else { SECONDS };
    let mut reader = Reader { rest: text, text, layout };
    let year = reader.digits(4, "2006")?;
    reader.literal("-")?;
    let month = reader.digits(2, "01")?;
    reader.range(month, 1..=12, "month")?;
    reader.literal("-")?;
    let day = reader.digits(2, "02")?;
    reader.literal("T")?;
    // Go accepts a single-digit hour too.
    let short = reader.rest.as_bytes().get(1).is_some_and(|b| !b.is_ascii_digit());
    let hour = reader.digits(if short { 1 } else { 2 }, "15")?;
    reader.range(hour, 0..=23, "hour")?;
    reader.literal(":")?;
    let minute = reader.digits(2, "04")?;
    reader.range(minute, 0..=59, "minute")?;
    reader.literal(":")?;
    let second = reader.digits(2, "05")?;
    reader.range(second, 0..=59, "second")?;
    let nanos = reader.fraction(micros)?;
    let offset = reader.zone()?;
    if !reader.rest.is_empty() {
        let (text, rest) = (quote(text), quote(reader.rest));
        return Err(format!("parsing time {text}: extra text: {rest}"));
    }
    if day < 1 || day > days_in(year, month) {
        return Err(format!("parsing time {}: day out of range", quote(text)));
    }
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Ok(Instant { seconds, nanos })
}

/// A text in double quotes as in errors of Go's time package: unprintable bytes as numbers.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='\x7f' => out.push(c),
            _ => {
                let mut buffer = [0; 4];
                let bytes = c.encode_utf8(&mut buffer).bytes();
                out.extend(bytes.map(|byte| format!("\\x{byte:02x}")));
            }
        }
    }
    out.push('"');
    out
}

struct Reader<'a> {
    rest: &'a str,
    text: &'a str,
    layout: &'a str,
}

impl Reader<'_> {
    fn fail<T>(&self, element: &str) -> Result<T, String> {
        let (text, layout) = (quote(self.text), self.layout);
        Err(format!(
            "parsing time {text} as \"{layout}\": cannot parse {} as \"{element}\"",
            quote(self.rest)
        ))
    }

    fn digits(&mut self, count: usize, element: &str) -> Result<i64, String> {
        let bytes = self.rest.as_bytes();
        if bytes.len() < count || !bytes[..count].iter().all(u8::is_ascii_digit) {
            return self.fail(element);
        }
        let (number, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(number.parse().unwrap_or(0))
    }

    fn literal(&mut self, literal: &str) -> Result<(), String> {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => self.fail(literal),
        }
    }

    fn range(&self, value: i64, range: std::ops::RangeInclusive<i64>, what: &str) -> Result<(), String> {
        if range.contains(&value) {
            Ok(())
        } else {
            Err(format!("parsing time {}: {what} out of range", quote(self.text)))
        }
    }

    fn fraction(&mut self, micros: bool) -> Result<u32, String> {
        let bytes = self.rest.as_bytes();
        let digits = match bytes.first() {
            Some(b'.' | b',') => bytes[1..].iter().take_while(|b| b.is_ascii_digit()).count(),
            _ => 0,
        };
        if micros {
            if digits < 6 || bytes[0] != b'.' {
                return self.fail(".000000");
            }
        } else if digits == 0 {
            return Ok(0);
        }
        let taken = if micros { 6 } else { digits };
        let mut nanos = 0;
        for digit in 0..9 {
            nanos = nanos * 10 + if digit < taken { u32::from(bytes[1 + digit] - b'0') } else { 0 };
        }
        self.rest = &self.rest[1 + taken..];
        Ok(nanos)
    }

    fn zone(&mut self) -> Result<i64, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let bytes = self.rest.as_bytes();
        let shaped = bytes.len() >= 6
            && matches!(bytes[0], b'+' | b'-')
            && bytes[3] == b':'
            && [1, 2, 4, 5].iter().all(|i| bytes[*i].is_ascii_digit());
        if !shaped {
            return self.fail("Z07:00");
        }
        let two = |i: usize| i64::from(bytes[i] - b'0') * 10 + i64::from(bytes[i + 1] - b'0');
        let (hours, minutes) = (two(1), two(4));
        if hours > 24 || minutes > 60 {
            let what = if hours > 24 { "hour" } else { "minute" };
            let text = quote(self.text);
            return Err(format!("parsing time {text}: time zone offset {what} out of range"));
        }
        let offset = hours * 3_600 + minutes * 60;
        let offset = if bytes[0] == b'-' { -offset } else { offset };
        self.rest = &self.rest[6..];
        Ok(offset)
    }
}

/// RFC 3339 in UTC; `micros` adds six digits of fraction.
pub fn format(instant: Instant, micros: bool) -> String {
    let (days, second) = (instant.seconds.div_euclid(86_400), instant.seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let mut text = String::with_capacity(27);
    if year < 0 {
        text.push('-');
    }
    match year.unsigned_abs() {
        year @ 0..10_000 => push_digits(&mut text, year, 1_000),
        year => {
            let _ = write!(text, "{year}");
        }
    }
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    for (mark, number) in [('-', month), ('-', day), ('T', hour), (':', minute), (':', second)] {
        text.push(mark);
        push_digits(&mut text, number.unsigned_abs(), 10);
    }
    if micros {
        text.push('.');
        push_digits(&mut text, u64::from(instant.nanos / 1_000), 100_000);
    }
    text.push('Z');
    text
}

/// Appends a number with leading zeros; `digit` is the value of its first digit.
fn push_digits(text: &mut String, number: u64, mut digit: u64) {
    while digit > 0 {
        text.push(char::from(b'0' + u8::try_from(number / digit % 10).unwrap_or(0)));
        digit /= 10;
    }
}

/// True if a text is already in the form of [`format`].
pub(crate) fn is_canonical(text: &str, micros: bool) -> bool {
    let bytes = text.as_bytes();
    let length = if micros { 27 } else { 20 };
    if bytes.len() != length || bytes[length - 1] != b'Z' || (micros && bytes[19] != b'.') {
        return false;
    }
    is_plain(bytes) || parse(text, micros).is_ok_and(|instant| instant != ZERO)
}

/// True if a text of the right length is canonical by a cheap test: day 1 to 28, and not in year 1.
fn is_plain(bytes: &[u8]) -> bool {
    let two = |at: usize| match (bytes[at].wrapping_sub(b'0'), bytes[at + 1].wrapping_sub(b'0')) {
        (tens @ 0..=9, ones @ 0..=9) => tens * 10 + ones,
        _ => u8::MAX,
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    marks.iter().all(|(at, mark)| bytes[*at] == *mark)
        && two(0) <= 99
        && two(2) <= 99
        && bytes[..4] != *b"0001"
        && matches!(two(5), 1..=12)
        && matches!(two(8), 1..=28)
        && two(11) <= 23
        && two(14) <= 59
        && two(17) <= 59
        && bytes[19..bytes.len() - 1].iter().skip(1).all(u8::is_ascii_digit)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

const UNITS: &[(&str, i64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration such as `1h15m30.5s` into nanoseconds.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let whole = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, after) = rest.split_at(whole);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", after),
        };
        if digits.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_length = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_length);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let Some((_, nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let (unit, text) = (quote(unit), quote(text));
            return Err(format!("time: unknown unit {unit} in duration {text}"));
        };
        let number: i128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| invalid())? };
        total =
            number.checked_mul(i128::from(*nanos)).and_then(|n| n.checked_add(total)).ok_or_else(invalid)?;
        let fraction = &fraction[..fraction.len().min(18)];
        let part: i128 = fraction.parse().unwrap_or(0);
        total += part * i128::from(*nanos) / 10i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        rest = after;
    }
    let total = if negative { -total } else { total };
    i64::try_from(total).map_err(|_| invalid())
}

/// Formats nanoseconds as Go does: `1h15m30.5s`, `1.5ms`, `0s`.
pub fn format_duration(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".to_owned();
    }
    let magnitude = nanos.unsigned_abs();
    let mut text = String::new();
    if nanos < 0 {
        text.push('-');
    }
    let (unit, name) = match magnitude {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let mut whole = magnitude / unit;
    if unit == 1_000_000_000 {
        let (hours, minutes) = (whole / 3_600, whole / 60 % 60);
        if hours > 0 {
            let _ = write!(text, "{hours}h");
        }
        if whole >= 60 {
            let _ = write!(text, "{minutes}m");
        }
        whole %= 60;
    }
    let _ = write!(text, "{whole}");
    let fraction = magnitude % unit;
    if fraction > 0 {
        let width = unit.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
    text.push_str(name);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_parse_with_go_errors() {
        let canonical = |text: &str, micros| parse(text, micros).map(|t| format(t, micros));
        assert_eq!(canonical("2024-02-29T12:00:00Z", false), Ok("2024-02-29T12:00:00Z".to_owned()));
        assert_eq!(canonical("2024-02-29T12:00:00.999+02:00", false), Ok("2024-02-29T10:00:00Z".to_owned()));
        assert_eq!(
            canonical("2024-02-29T12:00:00.123456Z", true),
            Ok("2024-02-29T12:00:00.123456Z".to_owned())
        );
        assert_eq!(parse("0001-01-01T00:00:00Z", false), Ok(ZERO));
        for (text, want) in [
            ("x", r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#),
            ("", r#"parsing time "" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006""#),
            ("2024-13-01T00:00:00Z", r#"parsing time "2024-13-01T00:00:00Z": month out of range"#),
            ("2023-02-29T00:00:00Z", r#"parsing time "2023-02-29T00:00:00Z": day out of range"#),
            (
                "2023-02-28T00:00:00Z\nü\"",
                r#"parsing time "2023-02-28T00:00:00Z\x0a\xc3\xbc\"": extra text: "\x0a\xc3\xbc\"""#,
            ),
            (
                "2024-01-01",
                r#"parsing time "2024-01-01" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T""#,
            ),
        ] {
            assert_eq!(parse(text, false), Err(want.to_owned()), "{text}");
        }
    }

    #[test]
    fn durations_parse_with_go_errors() {
        for (text, want) in [
            ("1h", "1h0m0s"),
            ("90m", "1h30m0s"),
            ("1.5s", "1.5s"),
            ("100ms", "100ms"),
            ("-1m", "-1m0s"),
            ("1us", "1µs"),
            ("0", "0s"),
            ("1h0m0.000000001s", "1h0m0.000000001s"),
        ] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), want, "{text}");
        }
        assert_eq!(parse_duration("5"), Err(r#"time: missing unit in duration "5""#.to_owned()));
        assert_eq!(parse_duration("5x"), Err(r#"time: unknown unit "x" in duration "5x""#.to_owned()));
        assert_eq!(parse_duration(""), Err(r#"time: invalid duration """#.to_owned()));
    }

    proptest! {
        #[test]
        fn times_round_trip(seconds in -62_135_596_800i64..253_402_300_799, nanos in 0u32..1_000_000) {
            let instant = Instant { seconds, nanos: nanos * 1_000 };
            prop_assert_eq!(parse(&format(instant, true), true), Ok(instant));
        }

        #[test]
        fn cheap_canonical_test_has_no_false_positives(
            text in "(000[01]|[0-9]{4})-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{6})?Z",
        ) {
            let micros = text.len() == 27;
            let canonical = parse(&text, micros).is_ok_and(|instant| instant != ZERO);
            prop_assert_eq!(is_canonical(&text, micros), canonical, "{}", text);
            prop_assert!(canonical || !is_plain(text.as_bytes()), "{}", text);
        }

        #[test]
        fn durations_round_trip(nanos: i64) {
            prop_assume!(nanos != i64::MIN);
            prop_assert_eq!(parse_duration(&format_duration(nanos)), Ok(nanos));
        }

        #[test]
        fn any_text_parses_without_panic(text in "\\PC{0,40}") {
            let _ = (parse(&text, true), parse(&text, false), parse_duration(&text));
        }
    }
}
