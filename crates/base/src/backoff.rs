//! Exponential backoff of retries and polls.

use std::time::Duration;

use rand::Rng;

/// Growing delays between attempts: `first`, then longer by a factor each time, up to `longest`.
///
/// ```
/// use base::backoff::Backoff;
/// use std::time::Duration;
///
/// let mut retry = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));
/// let delays: Vec<u128> = (0..4).map(|_| retry.next_delay().as_millis()).collect();
/// assert_eq!(delays, [200, 400, 800, 1000]);
/// retry.reset();
/// assert_eq!(retry.next_delay(), Duration::from_millis(200));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// Numerator and denominator of the growth per attempt.
    factor: (u32, u32),
    /// Bounds of the random factor of each delay.
    jitter: Option<(f64, f64)>,
    /// Last delay, without jitter.
    last: Option<Duration>,
}

impl Backoff {
    /// Doubles from `first` to `longest`, without jitter.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, factor: (2, 1), jitter: None, last: None }
    }

    /// Grows by `numerator / denominator` instead of doubling.
    #[must_use]
    pub const fn growing_by(mut self, numerator: u32, denominator: u32) -> Self {
        assert!(denominator > 0 && numerator >= denominator);
        self.factor = (numerator, denominator);
        self
    }

    /// Multiplies each delay with a random number of `low..high`.
    #[must_use]
    pub const fn with_jitter(mut self, low: f64, high: f64) -> Self {
        assert!(0.0 <= low && low < high);
        self.jitter = Some((low, high));
        self
    }

    /// Delay after this many consecutive failures, without jitter; zero without failures.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        let mut delay = None;
        for _ in 0..failures {
            let next = self.grow(delay);
            if delay == Some(next) {
                break;
            }
            delay = Some(next);
        }
        delay.unwrap_or(Duration::ZERO)
    }

    fn grow(&self, last: Option<Duration>) -> Duration {
        let next = last.map_or(self.first, |last| last.saturating_mul(self.factor.0) / self.factor.1);
        next.min(self.longest)
    }

    /// Delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.next_delay_with(&mut rand::rng())
    }

    /// As [`Backoff::next_delay`], with the jitter of this generator.
    pub fn next_delay_with(&mut self, random: &mut impl Rng) -> Duration {
        let delay = self.grow(self.last);
        self.last = Some(delay);
        match self.jitter {
            None => delay,
            Some((low, high)) => {
                let seconds = delay.as_secs_f64() * random.random_range(low..high);
                Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
            }
        }
    }

    /// Sleeps before the next attempt.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        self.last = None;
    }

    /// True before the first delay and after a reset.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.last.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand::rngs::SmallRng;

    fn millis(delay: Duration) -> u128 {
        delay.as_millis()
    }

    #[test]
    fn delays_grow_to_limit_and_start_over_after_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(35));
        assert!(backoff.is_reset());
        let delays: Vec<u128> = (0..5).map(|_| millis(backoff.next_delay())).collect();
        assert_eq!(delays, [5, 10, 20, 35, 35]);
        assert!(!backoff.is_reset());
        backoff.reset();
        assert_eq!(millis(backoff.next_delay()), 5);
    }

    #[test]
    fn delay_after_failures_equals_sequence_of_delays() {
        let unlimited = Backoff::new(Duration::from_millis(500), Duration::MAX).growing_by(3, 2);
        let mut sequence = unlimited.clone();
        assert_eq!(unlimited.after(0), Duration::ZERO);
        for failures in 1..20 {
            assert_eq!(unlimited.after(failures), sequence.next_delay(), "{failures}");
        }
        let backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1000));
        assert_eq!(backoff.after(18), Duration::from_millis(655_360));
        assert_eq!(backoff.after(19), Duration::from_secs(1000));
        assert_eq!(backoff.after(u32::MAX), Duration::from_secs(1000));
        assert_eq!(Backoff::new(Duration::ZERO, Duration::MAX).after(u32::MAX), Duration::ZERO);
        assert!(unlimited.after(u32::MAX) > Duration::from_secs(u64::from(u32::MAX)));
    }

    #[test]
    fn jitter_stays_within_bounds_and_does_not_accumulate() {
        let mut random = SmallRng::seed_from_u64(7);
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8)).with_jitter(0.8, 1.2);
        let mut differs = false;
        for expected in [1.0, 2.0, 4.0, 8.0, 8.0, 8.0] {
            let delay = backoff.next_delay_with(&mut random).as_secs_f64();
            assert!((expected * 0.8..expected * 1.2).contains(&delay), "{delay} of {expected}");
            differs |= (delay - expected).abs() > 1e-6;
        }
        assert!(differs);
        let mut longest = Backoff::new(Duration::MAX, Duration::MAX).with_jitter(1.5, 2.0);
        assert_eq!(longest.next_delay_with(&mut random), Duration::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_sleeps_for_growing_delays() {
        let begin = tokio::time::Instant::now();
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3));
        for elapsed in [1, 3, 6, 9] {
            backoff.wait().await;
            assert_eq!(begin.elapsed().as_secs(), elapsed);
        }
    }
}
