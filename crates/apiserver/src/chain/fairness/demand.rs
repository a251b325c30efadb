//! Seat demand of a priority level: integrated continuously, smoothed every few seconds.

use std::time::{Duration, Instant};

/// Interval at which borrowed seats are recomputed.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Decay of old demand per period: half of it remains after five minutes.
const SMOOTHING: f64 = 0.977;

/// Statistics of one period, and the smoothed value over all periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    pub average: f64,
    pub deviation: f64,
    pub high_watermark: usize,
    pub smoothed: f64,
}

/// Integrates demand over time.
#[derive(Clone, Debug)]
pub struct Demand {
    pub stats: Stats,
    current: f64,
    max: f64,
    since: Instant,
    elapsed: f64,
    sum: f64,
    sum_of_squares: f64,
}

impl Demand {
    pub fn new(now: Instant) -> Self {
        Self {
            stats: Stats::default(),
            current: 0.0,
            max: 0.0,
            since: now,
            elapsed: 0.0,
            sum: 0.0,
            sum_of_squares: 0.0,
        }
    }

    pub fn set(&mut self, now: Instant, seats: usize) {
        self.note(now);
        self.current = seats as f64;
        self.max = self.max.max(self.current);
    }

    fn note(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.elapsed += passed;
        self.sum += self.current * passed;
        self.sum_of_squares += self.current * self.current * passed;
    }

    /// Ends a period. An idle level is not sampled, so one call may stand for many periods: all but the last had the
    /// present demand.
    pub fn end_period(&mut self, now: Instant) -> Stats {
        self.note(now);
        let periods = (self.elapsed / PERIOD.as_secs_f64()).floor().clamp(1.0, 1e6);
        if self.elapsed > 0.0 {
            let average = self.sum / self.elapsed;
            let variance = self.sum_of_squares / self.elapsed - average * average;
            self.stats.average = average;
            self.stats.deviation = variance.max(0.0).sqrt();
            let envelope = average + self.stats.deviation;
            let kept = SMOOTHING.powf(periods);
            self.stats.smoothed = envelope.max(kept * self.stats.smoothed + (1.0 - kept) * envelope);
        }
        self.stats.high_watermark = self.max as usize;
        self.max = self.current;
        (self.elapsed, self.sum, self.sum_of_squares) = (0.0, 0.0, 0.0);
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_rises_immediately_and_decays_slowly() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut demand = Demand::new(start);
        demand.set(start, 10);
        demand.set(at(5), 20);
        let stats = demand.end_period(at(10));
        assert_eq!((stats.average, stats.deviation, stats.high_watermark), (15.0, 5.0, 20));
        assert_eq!(stats.smoothed, 20.0);
        demand.set(at(10), 0);
        let stats = demand.end_period(at(20));
        assert_eq!((stats.average, stats.high_watermark), (0.0, 20));
        assert!((stats.smoothed - 19.54).abs() < 1e-9, "{stats:?}");
        // One sample after five minutes equals thirty periodic ones.
        let stats = demand.end_period(at(320));
        assert!((stats.smoothed - 19.54 * 0.977_f64.powi(30)).abs() < 1e-6, "{stats:?}");
        assert_eq!(stats.high_watermark, 0);
    }
}
