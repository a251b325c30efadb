//! Resource usage of the machine and of this process.

use std::fs;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::usage::{Cpu, Memory};
use crate::node;

/// Minimum interval of a meaningful rate.
const MIN_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// Converts a counter to a rate per second since the previous call.
#[derive(Debug, Default)]
pub struct Rate(Mutex<Option<(Instant, u64, Option<u64>)>>);

impl Rate {
    pub fn of(&self, value: u64, now: Instant) -> Option<u64> {
        let mut last = self.0.lock();
        let rate = match *last {
            Some((at, before, rate)) => {
                let passed = now.duration_since(at);
                if passed < MIN_INTERVAL {
                    return rate;
                }
                let grown = u128::from(value.saturating_sub(before)) * 1_000_000_000;
                u64::try_from(grown / passed.as_nanos()).ok()
            }
            None => None,
        };
        *last = Some((now, value, rate));
        rate
    }
}

fn nanoseconds(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

/// CPU time used by the machine, in nanoseconds.
#[must_use]
pub fn processor_time() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or("");
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, irq, softirq, steal; idle and iowait do not count.
    nanoseconds(
        ticks.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).take(6).map(|(_, t)| *t).sum(),
    )
}

/// Memory usage of the machine.
#[must_use]
pub fn memory() -> Memory {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0).saturating_mul(1024)
    };
    let events = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let event = |name: &str| {
        let line = events.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
    };
    let (total, available) = (bytes("MemTotal"), u64::try_from(node::memory_available()).unwrap_or(0));
    Memory {
        working_set: total.saturating_sub(available),
        available: Some(available),
        usage: total.saturating_sub(bytes("MemFree")),
        rss: bytes("AnonPages"),
        page_faults: event("pgfault"),
        major_page_faults: event("pgmajfault"),
    }
}

/// Swap of the machine that is in use, in bytes.
#[must_use]
pub fn swap_usage() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    kilobytes("SwapTotal").saturating_sub(kilobytes("SwapFree")).saturating_mul(1024)
}

/// Boot time of the machine.
#[must_use]
pub fn booted() -> Option<Timestamp> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

/// Usage of this process, and its start time.
pub struct Own {
    pub cpu: Cpu,
    pub memory: Memory,
    pub started: Option<Timestamp>,
}

#[must_use]
pub fn own() -> Own {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain any character.
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .map(|word| word.parse().unwrap_or(0))
        .collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or(0);
    let resident = field(21).saturating_mul(rustix::param::page_size() as u64);
    let after_boot = i64::try_from(nanoseconds(field(19))).map(SignedDuration::from_nanos);
    Own {
        cpu: Cpu { nano_cores: 0, nanoseconds: nanoseconds(field(11).saturating_add(field(12))) },
        memory: Memory {
            working_set: resident,
            usage: resident,
            rss: resident,
            page_faults: field(7),
            major_page_faults: field(9),
            available: None,
        },
        started: booted().and_then(|at| at.saturating_add(after_boot.ok()?).ok()),
    }
}

/// Bytes and errors of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub name: String,
    pub received: (u64, u64),
    pub sent: (u64, u64),
}

/// Interfaces of the machine excluding those of pods, that of the default route first.
#[must_use]
pub fn interfaces() -> Vec<Traffic> {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let routes = fs::read_to_string("/proc/self/net/route").unwrap_or_default();
    let default = routes.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (name, to) = (words.next()?, words.next()?);
        (to == "00000000").then(|| name.to_owned())
    });
    let mut found: Vec<Traffic> = text.lines().filter_map(parse).collect();
    found.sort_by_key(|one| default.as_deref() != Some(one.name.as_str()));
    found
}

/// A line of `/proc/net/dev`: eight numbers for each direction.
fn parse(line: &str) -> Option<Traffic> {
    let (name, rest) = line.split_once(':')?;
    let name = name.trim();
    if name == "lo" || name.starts_with("veth") {
        return None;
    }
    let numbers: Vec<u64> = rest.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let both = |from: usize| Some((*numbers.get(from)?, *numbers.get(from + 2)?));
    Some(Traffic { name: name.to_owned(), received: both(0)?, sent: both(8)? })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rate_uses_time_between_calls() {
        let (rate, begun) = (Rate::default(), Instant::now());
        assert_eq!(rate.of(1000, begun), None);
        assert_eq!(rate.of(5000, begun + Duration::from_secs(2)), Some(2000));
        assert_eq!(
            rate.of(9000, begun + Duration::from_millis(2100)),
            Some(2000),
            "below the minimum interval"
        );
        assert_eq!(rate.of(7000, begun + Duration::from_secs(4)), Some(1000));
        assert_eq!(rate.of(0, begun + Duration::from_secs(6)), Some(0), "counter reset");
    }

    #[test]
    fn proc_net_dev_lines_parse() {
        let wanted = Traffic { name: "eth0".into(), received: (1000, 1), sent: (2000, 3) };
        assert_eq!(parse("  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0"), Some(wanted));
        for other in ["Inter-| Receive", "lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", "eth0: 1 2 3", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn machine_usage_is_readable() {
        assert!(processor_time() > 0);
        assert!(memory().working_set > 0 && memory().available.is_some_and(|bytes| bytes > 0));
        let own = own();
        assert!(own.memory.rss > 0);
        let (booted, started) = (booted().expect("a time"), own.started.expect("a time"));
        assert!(booted <= started && started <= Timestamp::now() + SignedDuration::from_mins(1));
    }
}
