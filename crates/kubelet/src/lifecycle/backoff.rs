//! Exponential backoff of container restarts and image pulls.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Backoff by key. The first failure waits for `initial`, each further one twice as long, up to `limit`; a key
/// without failures for twice the limit is reset.
#[derive(Clone, Debug)]
pub struct Backoff {
    delays: base::backoff::Backoff,
    limit: SignedDuration,
    entries: HashMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    failures: u32,
    wait: SignedDuration,
    updated: Timestamp,
}

impl Default for Backoff {
    /// Kubernetes' defaults: ten seconds, up to five minutes.
    fn default() -> Self {
        Self::new(Duration::from_secs(10), Duration::from_secs(300))
    }
}

impl Backoff {
    #[must_use]
    pub fn new(initial: Duration, limit: Duration) -> Self {
        let delays = base::backoff::Backoff::new(initial, limit);
        Self { delays, limit: signed(limit), entries: HashMap::new() }
    }

    /// End of the backoff that started at `since`, unless it has passed.
    #[must_use]
    pub fn until(&self, key: &str, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        if self.is_expired(entry, since) {
            return None;
        }
        let until = since.saturating_add(entry.wait).unwrap_or(since);
        (now < until).then_some(until)
    }

    /// End of the backoff since the last recorded failure, unless it has passed.
    #[must_use]
    pub fn until_since_update(&self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        self.until(key, entry.updated, now)
    }

    /// Current backoff.
    #[must_use]
    pub fn wait(&self, key: &str) -> SignedDuration {
        self.entries.get(key).map_or(SignedDuration::ZERO, |entry| entry.wait)
    }

    /// Records another failure at `since`, which doubles the backoff.
    pub fn step(&mut self, key: &str, since: Timestamp, now: Timestamp) {
        let failures = match self.entries.get(key) {
            Some(entry) if !self.is_expired(entry, since) => entry.failures.saturating_add(1),
            _ => 1,
        };
        let wait = signed(self.delays.after(failures));
        self.entries.insert(key.to_owned(), Entry { failures, wait, updated: now });
    }

    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Removes expired keys.
    pub fn prune(&mut self, now: Timestamp) {
        let limit = self.limit;
        self.entries.retain(|_, entry| now.duration_since(entry.updated) <= limit * 2);
    }

    fn is_expired(&self, entry: &Entry, since: Timestamp) -> bool {
        since.duration_since(entry.updated) > self.limit * 2
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_limit_and_expires() {
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
