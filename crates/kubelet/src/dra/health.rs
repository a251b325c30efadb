//! Health of devices that drivers report, until it is out of date.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cri::dra_health::{DeviceHealth as Reported, HealthStatus};

/// Time for which a report without its own limit counts.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 1024;
/// Maximum number of devices per driver.
const MAX_DEVICES: usize = 100_000;

/// Health of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    pub status: &'static str,
    pub message: String,
    timeout: Duration,
    updated: Instant,
}

/// Health by driver, pool and device.
#[derive(Debug, Default)]
pub struct Healths(BTreeMap<String, BTreeMap<(String, String), DeviceHealth>>);

const UNKNOWN: &str = "Unknown";

fn status_of(value: i32) -> &'static str {
    match HealthStatus::try_from(value) {
        Ok(HealthStatus::Healthy) => "Healthy",
        Ok(HealthStatus::Unhealthy) => "Unhealthy",
        _ => UNKNOWN,
    }
}

fn truncated(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=MAX_MESSAGE - 3).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    format!("{}...", &message[..end])
}

impl Healths {
    /// Merges a report of a driver; returns the pools and devices whose health changed.
    pub fn report(&mut self, driver: &str, reported: Vec<Reported>, now: Instant) -> Vec<(String, String)> {
        let devices = self.0.entry(driver.to_owned()).or_default();
        let (mut changed, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
        for one in reported.into_iter().take(MAX_DEVICES) {
            let id = one.device.unwrap_or_default();
            let key = (id.pool_name, id.device_name);
            let seconds = u64::try_from(one.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0);
            let health = DeviceHealth {
                status: status_of(one.health),
                message: truncated(&one.message),
                timeout: seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
                updated: now,
            };
            let is_same = devices.get(&key).is_some_and(|before| {
                (before.status, &before.message, before.timeout)
                    == (health.status, &health.message, health.timeout)
            });
            if !is_same {
                changed.push(key.clone());
            }
            seen.insert(key.clone());
            devices.insert(key, health);
        }
        for (key, health) in devices.iter_mut().filter(|(key, _)| !seen.contains(*key)) {
            if health.status != UNKNOWN && now.saturating_duration_since(health.updated) > health.timeout {
                (health.status, health.updated) = (UNKNOWN, now);
                health.message.clear();
                changed.push(key.clone());
            }
        }
        let excess = devices.len().saturating_sub(MAX_DEVICES);
        for _ in 0..excess {
            devices.pop_first();
        }
        changed
    }

    /// Forgets the devices of a driver that no longer reports.
    pub fn clear(&mut self, driver: &str) {
        self.0.remove(driver);
    }

    /// Health and message of a device; unknown if there is no recent report.
    pub fn of(&self, driver: &str, pool: &str, device: &str, now: Instant) -> (&'static str, Option<String>) {
        let key = (pool.to_owned(), device.to_owned());
        let found = self.0.get(driver).and_then(|devices| devices.get(&key));
        let current = found.filter(|found| now.saturating_duration_since(found.updated) <= found.timeout);
        current.map_or((UNKNOWN, None), |found| {
            (found.status, Some(found.message.clone()).filter(|message| !message.is_empty()))
        })
    }
}

#[cfg(test)]
mod tests {
    use cri::dra_health::DeviceIdentifier;

    use super::*;

    fn reported(device: &str, health: HealthStatus, seconds: i64, message: &str) -> Reported {
        let id = DeviceIdentifier { pool_name: "pool".to_owned(), device_name: device.to_owned() };
        Reported {
            device: Some(id),
            health: health as i32,
            last_updated_time: 0,
            health_check_timeout_seconds: seconds,
            message: message.to_owned(),
        }
    }

    #[test]
    fn report_counts_until_its_timeout() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut healths = Healths::default();
        let first = vec![
            reported("a", HealthStatus::Healthy, 0, ""),
            reported("b", HealthStatus::Unhealthy, 100, "too hot"),
            reported("c", HealthStatus::Healthy, -5, ""),
        ];
        assert_eq!(healths.report("d", first.clone(), start).len(), 3);
        assert_eq!(healths.report("d", first, at(1)).len(), 0, "nothing changed");
        assert_eq!(healths.of("d", "pool", "a", at(31)), ("Healthy", None));
        assert_eq!(healths.of("d", "pool", "a", at(32)), (UNKNOWN, None));
        assert_eq!(healths.of("d", "pool", "b", at(90)), ("Unhealthy", Some("too hot".to_owned())));
        assert_eq!(healths.of("d", "pool", "x", start), (UNKNOWN, None));
        assert_eq!(healths.of("other", "pool", "a", start), (UNKNOWN, None));
        let later = vec![reported("b", HealthStatus::Healthy, 100, "")];
        let changed = healths.report("d", later, at(50));
        let names: Vec<&str> = changed.iter().map(|(_, device)| device.as_str()).collect();
        assert_eq!(names, ["b", "a", "c"], "the others are out of date");
        healths.clear("d");
        assert_eq!(healths.of("d", "pool", "b", at(50)), (UNKNOWN, None));
    }

    #[test]
    fn long_messages_are_truncated() {
        let text = truncated(&"ü".repeat(1000));
        assert!(text.len() <= MAX_MESSAGE && text.ends_with("..."));
        assert_eq!(truncated("short"), "short");
    }
}
