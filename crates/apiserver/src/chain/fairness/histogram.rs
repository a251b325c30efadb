//! Histograms protected by an external lock: plain numbers, read when the metrics are scraped.

use std::time::{Duration, Instant};

/// Counts of values up to each bound.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub bounds: &'static [f64],
    /// One more than bounds: the last counts values above all of them.
    counts: Box<[f64]>,
    pub sum: f64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0.0; bounds.len() + 1].into(), sum: 0.0 }
    }

    pub fn observe(&mut self, value: f64) {
        self.observe_times(value, 1.0);
    }

    /// Observes `value` this many times.
    fn observe_times(&mut self, value: f64, times: f64) {
        let at = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[at] += times;
        self.sum += value * times;
    }

    /// Cumulative counts by bound.
    pub fn cumulative(&self) -> Vec<u64> {
        let add = |sum: &mut f64, count: &f64| {
            *sum += count;
            Some(*sum as u64)
        };
        self.counts.iter().take(self.bounds.len()).scan(0.0, add).collect()
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum::<f64>() as u64
    }
}

/// Time-weighted histogram of a ratio: one observation per nanosecond.
#[derive(Clone, Debug)]
pub struct RatioHistogram {
    histogram: Histogram,
    numerator: f64,
    denominator: f64,
    since: Instant,
}

impl RatioHistogram {
    pub fn new(bounds: &'static [f64], now: Instant) -> Self {
        Self { histogram: Histogram::new(bounds), numerator: 0.0, denominator: 1.0, since: now }
    }

    pub fn set(&mut self, now: Instant, numerator: usize) {
        self.note(now);
        self.numerator = numerator as f64;
    }

    pub fn set_denominator(&mut self, now: Instant, denominator: usize) {
        self.note(now);
        self.denominator = denominator.max(1) as f64;
    }

    fn note(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed > Duration::ZERO {
            self.histogram.observe_times(self.numerator / self.denominator, passed.as_nanos() as f64);
            self.since = now;
        }
    }

    pub fn read(&mut self, now: Instant) -> &Histogram {
        self.note(now);
        &self.histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_count_values_and_durations() {
        let mut plain = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 9.0] {
            plain.observe(value);
        }
        assert_eq!((plain.cumulative(), plain.count(), plain.sum), (vec![2, 3], 4, 12.0));

        let start = Instant::now();
        let mut ratio = RatioHistogram::new(&[0.5, 1.0], start);
        ratio.set_denominator(start, 4);
        ratio.set(start + Duration::from_nanos(10), 3);
        let read = ratio.read(start + Duration::from_nanos(30));
        assert_eq!((read.cumulative(), read.count(), read.sum), (vec![10, 30], 30, 15.0));
    }
}
