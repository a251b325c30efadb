//! Evicts pods before the node runs out of resources.

mod rank;
mod signals;
mod thresholds;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::events::Kind;
use crate::housekeeping::image_garbage::ImageGarbage;
use crate::node::Pressure;
use crate::pods::Workers;
use crate::shared::Shared;
pub use signals::{Measurements, Signal};
pub use thresholds::{Amount, Eviction, Threshold, ThresholdError, parse_amounts};

/// Observed threshold crossings.
#[derive(Default)]
pub struct Watch {
    /// Start of the current crossing, by threshold index.
    since: BTreeMap<usize, Timestamp>,
    /// Time of the last crossing, by threshold index.
    last: BTreeMap<usize, Timestamp>,
}

/// Result of comparing measurements with thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Evaluation {
    pressure: Pressure,
    /// Threshold to act on.
    act_on: Option<usize>,
}

impl Watch {
    /// Compares measurements with the thresholds.
    fn evaluate(&mut self, eviction: &Eviction, measured: &Measurements, now: Timestamp) -> Evaluation {
        let mut evaluation = Evaluation::default();
        let transition = SignedDuration::try_from(eviction.transition).unwrap_or(SignedDuration::MAX);
        for (at, threshold) in eviction.thresholds.iter().enumerate() {
            let mut wanted = *threshold;
            if let (Some(more), true) =
                (eviction.reclaim.get(&threshold.signal), self.since.contains_key(&at))
            {
                // Once met, a threshold stays met until the minimum reclaim is available in addition.
                let capacity = measured.of(threshold.signal).capacity;
                wanted.least = Amount::Count(threshold.least.of(capacity).saturating_add(more.of(capacity)));
            }
            if wanted.is_met(measured.of(threshold.signal)) {
                let since = *self.since.entry(at).or_insert(now);
                self.last.insert(at, now);
                let grace = threshold.grace.unwrap_or_default();
                let due =
                    SignedDuration::try_from(grace).is_ok_and(|grace| now.duration_since(since) >= grace);
                if due
                    && evaluation
                        .act_on
                        .is_none_or(|before| eviction.thresholds[before].signal > threshold.signal)
                {
                    evaluation.act_on = Some(at);
                }
            } else {
                self.since.remove(&at);
            }
            if self.last.get(&at).is_some_and(|last| now.duration_since(*last) < transition) {
                match threshold.signal {
                    Signal::Memory => evaluation.pressure.memory = true,
                    Signal::Pids => evaluation.pressure.pid = true,
                    _ => evaluation.pressure.disk = true,
                }
            }
        }
        evaluation
    }

    pub async fn check_once(
        &mut self,
        shared: &Shared,
        workers: &Arc<Workers>,
        images: &mut ImageGarbage,
        pressure: &Mutex<Pressure>,
    ) {
        let eviction = &shared.config.housekeeping.eviction;
        let mut taken = Instant::now();
        let mut measured = Measurements::take(shared).await;
        let mut evaluation = self.evaluate(eviction, &measured, shared.clock.now());
        *pressure.lock() = evaluation.pressure;
        let Some(at) = evaluation.act_on else { return };
        if eviction.thresholds[at].signal.is_disk() {
            // Images are cheaper to restore than pods.
            images.remove_unused(shared).await;
            taken = Instant::now();
            measured = Measurements::take(shared).await;
            evaluation = self.evaluate(eviction, &measured, shared.clock.now());
        }
        let Some(at) = evaluation.act_on else { return };
        let threshold = eviction.thresholds[at];
        let resource = threshold.signal.resource();
        let found = measured.of(threshold.signal);
        let name = &shared.config.node_name;
        let text = format!("Attempting to reclaim {resource}");
        shared.recorder.node(name, name, Kind::Warning, "EvictionThresholdMet", text);
        let candidates = rank::candidates(shared, &workers.pods(), threshold.signal).await;
        if let Some(first) = rank::ranked(candidates).first() {
            let least = threshold.least.of(found.capacity);
            let message = format!(
                "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. {}",
                rank::shown(least),
                rank::shown(found.available),
                first.excess(resource),
            );
            tracing::warn!(pod = first.uid, resource, available = found.available, least, "evicting pod");
            let grace = if threshold.grace.is_some() { eviction.max_pod_grace } else { 0 };
            shared.metrics.evicted(threshold.signal.name());
            shared.metrics.pods.evicted(threshold.signal.name(), taken);
            workers.evict(&first.uid, "Evicted", message, Some(grace.max(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn soft_threshold_grace_and_pressure_transition() {
        let at = |seconds| Timestamp::from_second(seconds).expect("a time");
        let threshold =
            |least, grace| Threshold { signal: Signal::Memory, least: Amount::Count(least), grace };
        let eviction = Eviction {
            thresholds: vec![threshold(100, None), threshold(200, Some(Duration::from_secs(30)))],
            transition: Duration::from_secs(60),
            ..Eviction::default()
        };
        let mut watch = Watch::default();
        let low = Measurements::with_memory(150);
        assert_eq!(watch.evaluate(&eviction, &low, at(0)).act_on, None);
        assert!(watch.evaluate(&eviction, &low, at(10)).pressure.memory);
        assert_eq!(watch.evaluate(&eviction, &low, at(31)).act_on, Some(1));
        assert_eq!(watch.evaluate(&eviction, &Measurements::with_memory(50), at(32)).act_on, Some(0));
        let fine = Measurements::with_memory(500);
        assert_eq!(
            watch.evaluate(&eviction, &fine, at(40)),
            Evaluation { pressure: Pressure { memory: true, ..Pressure::default() }, act_on: None }
        );
        assert_eq!(watch.evaluate(&eviction, &fine, at(100)), Evaluation::default());
    }

    #[test]
    fn eviction_continues_until_minimum_reclaim() {
        let at = |seconds| Timestamp::from_second(seconds).expect("a time");
        let eviction = Eviction {
            thresholds: vec![Threshold { signal: Signal::Memory, least: Amount::Count(100), grace: None }],
            reclaim: BTreeMap::from([(Signal::Memory, Amount::Count(50))]),
            ..Eviction::default()
        };
        let mut watch = Watch::default();
        let mut acts = |available, seconds| {
            watch.evaluate(&eviction, &Measurements::with_memory(available), at(seconds)).act_on.is_some()
        };
        assert_eq!(
            [acts(120, 0), acts(90, 1), acts(120, 2), acts(160, 3), acts(120, 4)],
            [false, true, true, false, false]
        );
    }
}
