//! Probe result counters.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// A probe of a container and one of its results.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counted {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub container: String,
    pub probe_type: &'static str,
    pub good: bool,
}

/// Default buckets of Prometheus clients.
pub const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Durations of a probe, of either result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durations {
    /// Counts of durations up to each bucket's bound, and above the bound before.
    pub buckets: [u64; BUCKETS.len()],
    pub count: u64,
    /// Seconds.
    pub sum: f64,
}

impl Durations {
    fn add(&mut self, seconds: f64) {
        if let Some(bucket) = self.buckets.iter_mut().zip(BUCKETS).find(|(_, bound)| seconds <= *bound) {
            *bucket.0 += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

/// Counts results, and measures durations, until their pod is removed.
#[derive(Debug, Default)]
pub struct Tally {
    counts: Mutex<BTreeMap<Counted, u64>>,
    /// By the probe, as if it was good.
    durations: Mutex<BTreeMap<Counted, Durations>>,
}

impl Tally {
    pub fn count(&self, answer: Counted, took: Duration) {
        *self.counts.lock().entry(answer.clone()).or_default() += 1;
        let probe = Counted { good: true, ..answer };
        self.durations.lock().entry(probe).or_default().add(took.as_secs_f64());
    }

    pub fn forget(&self, uid: &str) {
        self.counts.lock().retain(|answer, _| answer.uid != uid);
        self.durations.lock().retain(|probe, _| probe.uid != uid);
    }

    #[must_use]
    pub fn all(&self) -> Vec<(Counted, u64)> {
        self.counts.lock().iter().map(|(answer, count)| (answer.clone(), *count)).collect()
    }

    #[must_use]
    pub fn durations(&self) -> Vec<(Counted, Durations)> {
        self.durations.lock().iter().map(|(probe, durations)| (probe.clone(), durations.clone())).collect()
    }
}
