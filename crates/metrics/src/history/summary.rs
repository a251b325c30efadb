//! Summaries of a series: quantiles, and averages over equal spans of time.

use std::collections::BTreeMap;

/// Growth of the bounds of buckets: quantiles are exact to this ratio.
const GROWTH: f64 = 1.05;

/// Counts of values in buckets of growing size.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    buckets: BTreeMap<u16, u32>,
    count: u64,
    max: u64,
}

impl Quantiles {
    pub fn add(&mut self, value: u64) {
        #[expect(clippy::cast_precision_loss, reason = "buckets are coarser")]
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 1 + 64 / log2(1.05)"
        )]
        let bucket = if value == 0 { 0 } else { 1 + ((value as f64).ln() / GROWTH.ln()) as u16 };
        let count = self.buckets.entry(bucket).or_default();
        *count = count.saturating_add(1);
        self.count = self.count.saturating_add(1);
        self.max = self.max.max(value);
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that the fraction `percent` of all values does not exceed.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = u128::from(self.count).saturating_mul(u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0_u128;
        for (bucket, count) in &self.buckets {
            seen = seen.saturating_add(u128::from(*count));
            if seen >= wanted {
                if *bucket == 0 {
                    return 0;
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "casts of floats saturate"
                )]
                let bound = GROWTH.powi(i32::from(*bucket)) as u64;
                return bound.min(self.max);
            }
        }
        self.max
    }
}

/// Averages over equal spans.
#[derive(Clone, Debug)]
pub struct Spans {
    since: i64,
    length: i64,
    sums: Vec<(u64, u32)>,
}

impl Spans {
    /// `count` spans of the time from `since` to `until`.
    pub fn new(since: i64, until: i64, count: usize) -> Self {
        let parts = i64::try_from(count.max(1)).unwrap_or(1);
        let length = until.saturating_sub(since).div_euclid(parts).saturating_add(1).max(1);
        Self { since, length, sums: vec![(0, 0); count.max(1)] }
    }

    /// The number of spans.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    pub fn add(&mut self, at: i64, value: u64) {
        let span = at
            .checked_sub(self.since)
            .and_then(|offset| usize::try_from(offset.div_euclid(self.length)).ok());
        if let Some((sum, count)) = span.and_then(|span| self.sums.get_mut(span)) {
            *sum = sum.saturating_add(value);
            *count = count.saturating_add(1);
        }
    }

    /// Joins each two neighbouring spans.
    pub fn halve(&mut self) {
        self.length = self.length.saturating_mul(2);
        let join = |pair: &[(u64, u32)]| {
            pair.iter().fold((0_u64, 0_u32), |(sum, count), (other, more)| {
                (sum.saturating_add(*other), count.saturating_add(*more))
            })
        };
        self.sums = self.sums.chunks(2).map(join).collect();
    }

    /// The average of each span; `None` without a point.
    pub fn averages(&self) -> Vec<Option<u64>> {
        let average = |(sum, count): &(u64, u32)| sum.checked_div(u64::from(*count));
        self.sums.iter().map(average).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_the_growth() {
        let mut quantiles = Quantiles::default();
        (1..=1000).for_each(|value| quantiles.add(value));
        for (percent, exact) in [(50, 500), (95, 950), (100, 1000)] {
            let found = quantiles.percentile(percent);
            assert!((exact..=exact + exact / 20).contains(&found), "p{percent}: {found}");
        }
        assert_eq!((quantiles.max(), Quantiles::default().percentile(95)), (1000, 0));
        let mut zeros = Quantiles::default();
        zeros.add(0);
        assert_eq!(zeros.percentile(95), 0);
        zeros.add(u64::MAX);
        assert!(zeros.percentile(100) > u64::MAX / 2);
    }

    #[test]
    fn spans_average_their_points() {
        let mut spans = Spans::new(100, 200, 4);
        for (at, value) in [(100, 10), (110, 20), (199, 7), (99, 1000), (5000, 1000)] {
            spans.add(at, value);
        }
        assert_eq!(spans.averages(), [Some(15), None, None, Some(7)]);
        spans.halve();
        assert_eq!(spans.averages(), [Some(15), Some(7)]);
        spans.add(130, 0);
        assert_eq!(spans.averages(), [Some(10), Some(7)]);
        spans.halve();
        spans.halve();
        assert_eq!(spans.averages(), [Some(9)]);
    }
}
