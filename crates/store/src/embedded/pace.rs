//! How close together writes come, and whether to wait a moment for more of them.
//!
//! A sync costs more than everything else about a write. Where writes come so fast that each sync would serve one or two
//! of them, a moment of patience lets it serve several. Whoever writes alone never waits: nobody would come.

use std::time::{Duration, Instant};

/// Requests per second from which on it pays to wait.
const BUSY: f64 = 4000.0;
/// How long is waited.
const PATIENCE: Duration = Duration::from_micros(400);
/// So many are company enough.
const COMPANY: usize = 32;
/// The rate is that of about this long.
const MEMORY: f64 = 0.01;

pub(super) struct Pace {
    last: Instant,
    rate: f64,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { last: now, rate: 0.0 }
    }

    /// So many requests have come since the last time.
    pub fn note(&mut self, requests: usize, now: Instant) {
        let seconds = now.saturating_duration_since(self.last).as_secs_f64().max(1e-6);
        let weight = (seconds / MEMORY).min(1.0);
        self.rate += (requests as f64 / seconds - self.rate) * weight;
        self.last = now;
    }

    /// How long to wait for more than these, if at all.
    pub fn patience(&self, requests: usize) -> Option<Duration> {
        (self.rate > BUSY && requests < COMPANY).then_some(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rush_is_waited_for() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let mut go_on = |requests: usize, every: Duration, rounds: usize| {
            for _ in 0..rounds {
                now += every;
                pace.note(requests, now);
            }
            pace.patience(1).is_some()
        };
        assert!(!go_on(1, Duration::from_micros(500), 1000), "one writer, as fast as it can");
        assert!(go_on(4, Duration::from_micros(500), 100), "several");
        assert!(!go_on(0, Duration::from_secs(1), 1), "a pause");
        assert!(!go_on(50, Duration::from_secs(1), 10), "a burst now and then");
    }

    #[test]
    fn those_who_are_many_wait_for_nobody() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.note(1000, now + Duration::from_millis(20));
        assert!(pace.patience(COMPANY - 1).is_some() && pace.patience(COMPANY).is_none());
    }
}
