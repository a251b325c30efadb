//! The wall clock. Production uses the system's; tests use one that they set.
//!
//! Deadlines computed from user input (`activeDeadlineSeconds`, `tolerationSeconds`, …) use [`deadline_after`] and
//! [`time_left`]: they saturate, where the operators of `Instant`, `Duration`, `SignedDuration`
//! and `Timestamp` panic. `clippy.toml` forbids the operators in the crates of the controllers.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Longest delay of a timer. Later deadlines are checked again when it fires.
pub const LONGEST_DELAY: Duration = Duration::from_secs(100 * 24 * 60 * 60);

/// The instant after `delay`, at most [`LONGEST_DELAY`] from now.
#[must_use]
pub fn deadline_after(delay: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(delay.min(LONGEST_DELAY)).unwrap_or(now)
}

/// The time left of `allowed`, which began at `since`; negative if it is over.
#[must_use]
pub fn time_left(allowed: SignedDuration, since: Timestamp, now: Timestamp) -> SignedDuration {
    allowed.saturating_sub(now.duration_since(since))
}

/// A source of the current time. Clones share it.
///
/// ```
/// use base::clock::Clock;
/// use jiff::{SignedDuration, Timestamp};
///
/// let clock = Clock::held_at(Timestamp::UNIX_EPOCH);
/// let component = clock.clone();
/// clock.advance(SignedDuration::from_secs(60));
/// assert_eq!(component.now().as_second(), 60);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock {
    held: Option<Arc<Mutex<Timestamp>>>,
}

impl Clock {
    /// The system's wall clock.
    #[must_use]
    pub fn system() -> Self {
        Self { held: None }
    }

    /// A clock that stands at `start` until it is moved.
    #[must_use]
    pub fn held_at(start: Timestamp) -> Self {
        Self { held: Some(Arc::new(Mutex::new(start))) }
    }

    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the wall clock")]
    pub fn now(&self) -> Timestamp {
        match &self.held {
            None => Timestamp::now(),
            Some(held) => *held.lock(),
        }
    }

    /// Advances a held clock; has no effect on the system's.
    pub fn advance(&self, by: SignedDuration) {
        if let Some(held) = &self.held {
            let mut now = held.lock();
            *now = now.saturating_add(by).unwrap_or(*now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_clock_moves_only_when_set() {
        let clock = Clock::held_at(Timestamp::UNIX_EPOCH);
        let other = clock.clone();
        assert_eq!(clock.now(), Timestamp::UNIX_EPOCH);
        other.advance(SignedDuration::from_secs(90));
        assert_eq!(clock.now().as_second(), 90);
    }

    #[test]
    fn deadlines_of_any_number_saturate() {
        let now = Timestamp::UNIX_EPOCH;
        let longest = SignedDuration::from_secs(i64::MAX);
        let shortest = SignedDuration::from_secs(i64::MIN);
        let before = now.checked_sub(SignedDuration::from_secs(10)).expect("a time");
        assert_eq!(time_left(SignedDuration::from_secs(30), before, now), SignedDuration::from_secs(20));
        assert!(time_left(longest, now, Timestamp::MIN) >= longest);
        assert!(time_left(longest, Timestamp::MIN, now).is_positive());
        assert!(time_left(shortest, Timestamp::MIN, Timestamp::MAX) <= shortest);
        for delay in
            [Duration::ZERO, Duration::from_secs(9), Duration::from_secs(i64::MAX as u64), Duration::MAX]
        {
            let begin = Instant::now();
            let wait = deadline_after(delay).duration_since(begin);
            assert!(wait >= delay.min(LONGEST_DELAY), "{delay:?}");
            assert!(wait < delay.min(LONGEST_DELAY).saturating_add(Duration::from_secs(60)), "{delay:?}");
        }
    }

    #[test]
    fn system_clock_returns_the_current_time() {
        let before = Timestamp::now();
        assert!(Clock::system().now() >= before);
    }
}
