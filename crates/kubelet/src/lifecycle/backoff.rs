//! Waiting times that double: between restarts of a container, between pulls of an image.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Waiting times by key. The first failure waits for `initial`, each further one twice as long, up to `limit`; a key
/// that has been good for twice the limit begins anew.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: SignedDuration,
    limit: SignedDuration,
    entries: HashMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wait: SignedDuration,
    updated: Timestamp,
}

impl Default for Backoff {
    /// Kubernetes' times: ten seconds, up to five minutes.
    fn default() -> Self {
        Self::new(Duration::from_secs(10), Duration::from_secs(300))
    }
}

impl Backoff {
    #[must_use]
    pub fn new(initial: Duration, limit: Duration) -> Self {
        let convert = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        Self { initial: convert(initial), limit: convert(limit), entries: HashMap::new() }
    }

    /// When the wait that began at `since` ends, if it has not ended yet.
    #[must_use]
    pub fn until(&self, key: &str, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        if self.is_expired(entry, since) {
            return None;
        }
        let until = since.saturating_add(entry.wait).unwrap_or(since);
        (now < until).then_some(until)
    }

    /// When the wait ends that began with the last failure noted, if it has not ended yet.
    #[must_use]
    pub fn until_since_update(&self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        self.until(key, entry.updated, now)
    }

    /// The wait in force.
    #[must_use]
    pub fn wait(&self, key: &str) -> SignedDuration {
        self.entries.get(key).map_or(SignedDuration::ZERO, |entry| entry.wait)
    }

    /// Notes another failure, at `since`; the next one waits longer.
    pub fn step(&mut self, key: &str, since: Timestamp, now: Timestamp) {
        let wait = match self.entries.get(key) {
            Some(entry) if !self.is_expired(entry, since) => {
                entry.wait.checked_mul(2).unwrap_or(self.limit).min(self.limit)
            }
            _ => self.initial,
        };
        self.entries.insert(key.to_owned(), Entry { wait, updated: now });
    }

    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Drops what has been good for long.
    pub fn prune(&mut self, now: Timestamp) {
        let limit = self.limit;
        self.entries.retain(|_, entry| now.duration_since(entry.updated) <= limit * 2);
    }

    fn is_expired(&self, entry: &Entry, since: Timestamp) -> bool {
        since.duration_since(entry.updated) > self.limit * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_expire() {
        let mut backoff = Backoff::default();
        let mut now = Timestamp::UNIX_EPOCH;
        assert_eq!(backoff.until("a", now, now), None);
        for want in [10, 20, 40, 80, 160, 300, 300] {
            backoff.step("a", now, now);
            assert_eq!(backoff.wait("a").as_secs(), want);
            let until = backoff.until("a", now, now).expect("a wait");
            assert_eq!(until.duration_since(now).as_secs(), want);
            now = until;
            assert_eq!(backoff.until("a", now - SignedDuration::from_secs(want), now), None);
        }
        let later = now + SignedDuration::from_secs(700);
        backoff.step("a", later, later);
        assert_eq!(backoff.wait("a").as_secs(), 10);
    }
}
