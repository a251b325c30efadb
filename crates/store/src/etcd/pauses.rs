//! Growing pauses between attempts. The store depends on no other crate of the workspace, `base::backoff` included.

use std::time::Duration;

/// Pauses that double from the first to the longest.
pub(super) struct Pauses {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Pause before the next attempt.
    pub fn advance(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_longest_and_start_over_after_reset() {
        let mut pauses = Pauses::new(Duration::from_millis(20), Duration::from_millis(70));
        let seen: Vec<u128> = (0..4).map(|_| pauses.advance().as_millis()).collect();
        assert_eq!(seen, [20, 40, 70, 70]);
        pauses.reset();
        assert_eq!(pauses.advance().as_millis(), 20);
    }
}
