//! Largest number of requests at a time in the last full second, by kind of request.

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Error, IntGaugeVec, Opts};
use std::sync::Arc;
use std::time::Instant;

/// Requests that execute, or wait for a seat. Clones share the counts.
#[derive(Clone)]
pub struct Watermarks {
    gauges: IntGaugeVec,
    epoch: Instant,
    /// Reading and mutating requests.
    kinds: Arc<[Mutex<Watermark>; 2]>,
}

const KINDS: [&str; 2] = ["readOnly", "mutating"];

/// A counted request; uncounted on drop.
pub struct Counted {
    of: Watermarks,
    kind: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watermark {
    current: i64,
    /// Second in which `current` changed last, its peak, and the peak of the second before.
    second: u64,
    peak: i64,
    before: i64,
}

impl Watermark {
    fn change(&mut self, now: u64, by: i64) {
        self.roll(now);
        self.current += by;
        self.peak = self.peak.max(self.current);
    }

    /// Begins a new second, if it is one.
    fn roll(&mut self, now: u64) {
        if now > self.second {
            self.before = if now == self.second + 1 { self.peak } else { self.current };
            (self.second, self.peak) = (now, self.current);
        }
    }
}

impl Watermarks {
    pub fn new(name: &str, help: &str) -> Result<Self, Error> {
        let gauges = IntGaugeVec::new(Opts::new(name, help), &["request_kind"])?;
        Ok(Self { gauges, epoch: Instant::now(), kinds: Arc::default() })
    }

    pub fn count(&self, is_mutating: bool) -> Counted {
        let kind = usize::from(is_mutating);
        self.kinds[kind].lock().change(self.now(), 1);
        Counted { of: self.clone(), kind }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_secs()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let now = self.of.now();
        self.of.kinds[self.kind].lock().change(now, -1);
    }
}

impl Collector for Watermarks {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = self.now();
        for (kind, name) in self.kinds.iter().zip(KINDS) {
            let mut kind = kind.lock();
            kind.roll(now);
            self.gauges.with_label_values(&[name]).set(kind.before);
        }
        self.gauges.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermark_is_the_peak_of_the_last_second() {
        let mut mark = Watermark::default();
        for (now, by) in [(0, 1), (0, 1), (0, 1), (0, -1)] {
            mark.change(now, by);
        }
        mark.roll(1);
        assert_eq!((mark.before, mark.current), (3, 2));
        mark.change(1, -1);
        mark.roll(2);
        assert_eq!(mark.before, 2);
        mark.roll(9);
        assert_eq!(mark.before, 1, "nothing changed for some seconds");
    }
}
