//! The one wall clock. Production reads the system's; tests hold theirs still and move it by hand.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A source of the present time. Clones tell the same time.
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
    pub fn now(&self) -> Timestamp {
        match &self.held {
            None => Timestamp::now(),
            Some(held) => *held.lock(),
        }
    }

    /// Moves a held clock; the system's does as it likes.
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
    fn a_held_clock_moves_only_by_hand() {
        let clock = Clock::held_at(Timestamp::UNIX_EPOCH);
        let other = clock.clone();
        assert_eq!(clock.now(), Timestamp::UNIX_EPOCH);
        other.advance(SignedDuration::from_secs(90));
        assert_eq!(clock.now().as_second(), 90);
    }

    #[test]
    fn the_system_clock_tells_the_time() {
        let before = Timestamp::now();
        assert!(Clock::system().now() >= before);
    }
}
