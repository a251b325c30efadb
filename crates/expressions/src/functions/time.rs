//! Timestamps and durations.

use super::Row;
use crate::value::{EvaluationResult, Fault, Value};
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

/// Functions that return a part of a timestamp, in UTC or in the given time zone.
const PART: &[&str] = &["timestamp.() -> int", "timestamp.(string) -> int"];
const PART_OR_DURATION: &[&str] = &["timestamp.() -> int", "timestamp.(string) -> int", "duration.() -> int"];

pub const ROWS: &[Row] = &[
    ("duration", &["(duration) -> duration", "(int) -> duration", "(string) -> duration"], |values| {
        match values {
            [Value::Duration(nanos)] | [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
            [Value::String(text)] => parse_duration(text).map(Value::Duration),
            _ => Err(Fault::no_such_overload()),
        }
    }),
    ("timestamp", &["(timestamp) -> timestamp", "(int) -> timestamp", "(string) -> timestamp"], |values| {
        match values {
            [Value::Timestamp(at)] => Ok(Value::Timestamp(*at)),
            [Value::Int(second)] => Timestamp::from_second(*second)
                .map(Value::Timestamp)
                .map_err(|_| Fault::new("timestamp overflow")),
            [Value::String(text)] => parse_timestamp(text).map(Value::Timestamp),
            _ => Err(Fault::no_such_overload()),
        }
    }),
    ("getFullYear", PART, |values| part(values, |at| at.year().into())),
    ("getMonth", PART, |values| part(values, |at| i64::from(at.month()) - 1)),
    ("getDayOfYear", PART, |values| part(values, |at| i64::from(at.day_of_year()) - 1)),
    ("getDayOfMonth", PART, |values| part(values, |at| i64::from(at.day()) - 1)),
    ("getDate", PART, |values| part(values, |at| at.day().into())),
    ("getDayOfWeek", PART, |values| part(values, |at| at.weekday().to_sunday_zero_offset().into())),
    ("getHours", PART_OR_DURATION, |values| match values {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 3_600_000_000_000)),
        _ => part(values, |at| at.hour().into()),
    }),
    ("getMinutes", PART_OR_DURATION, |values| match values {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 60_000_000_000)),
        _ => part(values, |at| at.minute().into()),
    }),
    ("getSeconds", PART_OR_DURATION, |values| match values {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000_000)),
        _ => part(values, |at| at.second().into()),
    }),
    ("getMilliseconds", PART_OR_DURATION, |values| match values {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000)),
        _ => part(values, |at| at.millisecond().into()),
    }),
];

fn part<'a>(values: &[Value<'a>], of: impl Fn(&jiff::Zoned) -> i64) -> EvaluationResult<'a> {
    let (at, zone) = match values {
        [Value::Timestamp(at)] => (at, TimeZone::UTC),
        [Value::Timestamp(at), Value::String(name)] => (at, zone(name)?),
        _ => return Err(Fault::no_such_overload()),
    };
    Ok(Value::Int(of(&at.to_zoned(zone))))
}

/// `Europe/Berlin`, `+02:00` or `-7:30`.
fn zone(name: &str) -> Result<TimeZone, Fault> {
    let unknown = || Fault::new(format!("unknown time zone {name}"));
    let Some((hours, minutes)) = name.split_once(':') else {
        return if matches!(name, "" | "UTC") {
            Ok(TimeZone::UTC)
        } else {
            TimeZone::get(name).map_err(|_| unknown())
        };
    };
    let (hours, minutes): (i32, i32) =
        (hours.parse().map_err(|_| unknown())?, minutes.parse().map_err(|_| unknown())?);
    let minutes = if name.starts_with('-') { -minutes } else { minutes };
    let seconds = hours.saturating_mul(3600).saturating_add(minutes.saturating_mul(60));
    Offset::from_seconds(seconds).map(TimeZone::fixed).map_err(|_| unknown())
}

pub fn shift<'a>(at: Timestamp, nanos: i64) -> EvaluationResult<'a> {
    let by = jiff::SignedDuration::from_nanos(nanos);
    at.checked_add(by).map(Value::Timestamp).map_err(|_| Fault::new("timestamp overflow"))
}

pub fn parse_timestamp(text: &str) -> Result<Timestamp, Fault> {
    text.parse().map_err(|_| Fault::new("type conversion error from 'string' to 'google.protobuf.Timestamp'"))
}

/// `1h30m`, `-1.5s`, `300ms`, `0`.
pub fn parse_duration(text: &str) -> Result<i64, Fault> {
    machinery::codec::time::parse_duration(text)
        .map_err(|_| Fault::new("type conversion error from 'string' to 'google.protobuf.Duration'"))
}

/// A duration in seconds: `5400s`, `0.1s`.
pub fn seconds_text(nanos: i64) -> String {
    let (sign, magnitude) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (seconds, rest) = (magnitude / 1_000_000_000, magnitude % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_and_print() {
        for (text, want) in [
            ("1h30m", Some("5400s")),
            ("-1.5s", Some("-1.5s")),
            ("300ms", Some("0.3s")),
            ("0", Some("0s")),
            ("1d", None),
            ("", None),
            ("5", None),
            (".s", None),
            ("9999999999h", None),
        ] {
            assert_eq!(parse_duration(text).ok().map(seconds_text).as_deref(), want, "{text}");
        }
    }
}
