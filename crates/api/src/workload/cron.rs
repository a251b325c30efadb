//! Cron schedules and time zones of cron jobs, with the messages of the parser that Kubernetes uses.

/// Names of the IANA time zones, one per line.
const ZONES: &str = include_str!("zones.txt");

/// Minimum and maximum of a field, and names of values.
struct Bounds {
    min: u64,
    max: u64,
    names: &'static [&'static str],
}

const FIELDS: [Bounds; 5] = [
    Bounds { min: 0, max: 59, names: &[] },
    Bounds { min: 0, max: 23, names: &[] },
    Bounds { min: 1, max: 31, names: &[] },
    Bounds {
        min: 1,
        max: 12,
        names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];

/// Error of an invalid schedule.
pub fn schedule_problem(schedule: &str) -> Option<String> {
    let mut spec = schedule;
    if spec.is_empty() {
        return Some("empty spec string".to_owned());
    }
    if spec.starts_with("TZ=") || spec.starts_with("CRON_TZ=") {
        let Some((zone, rest)) = spec.split_once(' ') else {
            let start = spec.find('=').map_or(0, |at| at + 1);
            let detail =
                format!("invalid schedule format: runtime error: slice bounds out of range [{start}:-1]");
            return Some(detail);
        };
        let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
        if !is_time_zone(zone) {
            return Some(format!("provided bad location {zone}: unknown time zone {zone}"));
        }
        spec = rest.trim();
    }
    if let Some(descriptor) = spec.strip_prefix('@') {
        return descriptor_problem(descriptor, spec);
    }
    let fields: Vec<&str> = spec.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let found = fields.len();
        return Some(format!("expected exactly 5 fields, found {found}: [{}]", fields.join(" ")));
    }
    let mut problems = fields.iter().zip(&FIELDS).filter_map(|(field, bounds)| {
        field.split(',').filter(|part| !part.is_empty()).find_map(|part| range_problem(part, bounds).err())
    });
    problems.next()
}

fn descriptor_problem(descriptor: &str, whole: &str) -> Option<String> {
    match descriptor {
        "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => None,
        _ => match descriptor.strip_prefix("every ") {
            Some(duration) => match machinery::codec::time::parse_duration(duration) {
                Ok(_) => None,
                Err(problem) => Some(format!("failed to parse duration {whole}: {problem}")),
            },
            None => Some(format!("unrecognized descriptor: {whole}")),
        },
    }
}

fn range_problem(part: &str, bounds: &Bounds) -> Result<(), String> {
    let mut steps = part.split('/');
    let range = steps.next().unwrap_or("");
    let step = steps.next();
    let limits: Vec<&str> = range.split('-').collect();
    let (start, mut end) = if matches!(limits[0], "*" | "?") {
        (bounds.min, bounds.max)
    } else {
        let start = number_or_name(limits[0], bounds)?;
        match limits[..] {
            [_] => (start, start),
            [_, end] => (start, number_or_name(end, bounds)?),
            _ => return Err(format!("too many hyphens: {part}")),
        }
    };
    let step = match step {
        None => 1,
        Some(_) if steps.next().is_some() => return Err(format!("too many slashes: {part}")),
        Some(step) => {
            let step = number(step)?;
            if limits.len() == 1 {
                end = bounds.max;
            }
            step
        }
    };
    let (min, max) = (bounds.min, bounds.max);
    if start < min {
        Err(format!("beginning of range ({start}) below minimum ({min}): {part}"))
    } else if end > max {
        Err(format!("end of range ({end}) above maximum ({max}): {part}"))
    } else if start > end {
        Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"))
    } else if step == 0 {
        Err(format!("step of range should be a positive number: {part}"))
    } else {
        Ok(())
    }
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u64, String> {
    let lower = text.to_lowercase();
    match bounds.names.iter().position(|name| *name == lower) {
        Some(position) => Ok(bounds.min + position as u64),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => Ok(number.unsigned_abs()),
        Err(_) => {
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let reason = if is_number { "value out of range" } else { "invalid syntax" };
            Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {reason}"))
        }
    }
}

/// Error of an invalid `timeZone`.
pub fn time_zone_problems(zone: &str) -> Vec<String> {
    if zone.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    let plain = |part: &str| {
        (1..=14).contains(&part.len())
            && !matches!(part, "." | "..")
            && !part.starts_with('-')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'))
    };
    if !zone.split('/').all(plain) {
        return vec![format!("unknown time zone {zone}")];
    }
    let mut problems = Vec::new();
    if zone.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        problems.push(detail.to_owned());
    }
    if !is_time_zone(zone) {
        problems.push(format!("unknown time zone {zone}"));
    }
    problems
}

/// True if the zone exists. Names are matched exactly; `UTC` and `Local` always exist.
fn is_time_zone(zone: &str) -> bool {
    matches!(zone, "" | "UTC" | "Local") || ZONES.lines().any(|known| known == zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_errors_match_kubernetes() {
        for (schedule, want) in [
            ("*/5 * * * *", ""),
            ("0 0 1 JAN sun", ""),
            ("@daily", ""),
            ("@every 1h", ""),
            ("0 0 * *", "expected exactly 5 fields, found 4: [0 0 * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("@never", "unrecognized descriptor: @never"),
        ] {
            assert_eq!(schedule_problem(schedule).unwrap_or_default(), want, "{schedule}");
        }
    }

    #[test]
    fn time_zones_are_validated() {
        for (zone, problems) in [
            ("Etc/UTC", 0),
            ("Europe/Vienna", 0),
            ("UTC", 0),
            ("", 1),
            ("Bad/Zone", 1),
            ("Local", 1),
            ("../etc/passwd", 1),
            ("Asia/averylongzonename", 1),
        ] {
            assert_eq!(time_zone_problems(zone).len(), problems, "{zone}");
        }
    }
}
