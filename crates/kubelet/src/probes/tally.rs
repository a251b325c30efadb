//! Probe result counters.

use std::collections::BTreeMap;

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

/// Counts results until their pod is removed.
#[derive(Debug, Default)]
pub struct Tally(Mutex<BTreeMap<Counted, u64>>);

impl Tally {
    pub fn count(&self, answer: Counted) {
        *self.0.lock().entry(answer).or_default() += 1;
    }

    pub fn forget(&self, uid: &str) {
        self.0.lock().retain(|answer, _| answer.uid != uid);
    }

    #[must_use]
    pub fn all(&self) -> Vec<(Counted, u64)> {
        self.0.lock().iter().map(|(answer, count)| (answer.clone(), *count)).collect()
    }
}
