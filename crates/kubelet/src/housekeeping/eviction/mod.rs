//! Evicting pods before the node itself suffers.

mod rank;
mod signals;
mod thresholds;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::events::Kind;
use crate::housekeeping::image_garbage::ImageGarbage;
use crate::node::Pressure;
use crate::pods::Workers;
use crate::shared::Shared;
pub use signals::{Measurements, Signal};
pub use thresholds::{Amount, Eviction, Threshold, ThresholdError, parse_amounts};

/// What was seen of shortages.
#[derive(Default)]
pub struct Watch {
    /// When a threshold was first met, without a break since.
    since: BTreeMap<usize, Timestamp>,
    /// When a threshold was last met.
    last: BTreeMap<usize, Timestamp>,
}

/// What a look at the node found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Judgement {
    pressure: Pressure,
    /// The threshold to act on.
    act_on: Option<usize>,
}

impl Watch {
    /// Compares what was measured with the thresholds.
    fn judge(&mut self, eviction: &Eviction, measured: &Measurements, now: Timestamp) -> Judgement {
        let mut judgement = Judgement::default();
        let transition = SignedDuration::try_from(eviction.transition).unwrap_or(SignedDuration::MAX);
        for (at, threshold) in eviction.thresholds.iter().enumerate() {
            let mut wanted = *threshold;
            if let (Some(more), true) =
                (eviction.reclaim.get(&threshold.signal), self.since.contains_key(&at))
            {
                // Once begun it goes on until more than the threshold is available.
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
                    && judgement
                        .act_on
                        .is_none_or(|before| eviction.thresholds[before].signal > threshold.signal)
                {
                    judgement.act_on = Some(at);
                }
            } else {
                self.since.remove(&at);
            }
            if self.last.get(&at).is_some_and(|last| now.duration_since(*last) < transition) {
                match threshold.signal {
                    Signal::Memory => judgement.pressure.memory = true,
                    Signal::Pids => judgement.pressure.pid = true,
                    _ => judgement.pressure.disk = true,
                }
            }
        }
        judgement
    }

    pub async fn look(
        &mut self,
        shared: &Shared,
        workers: &Arc<Workers>,
        images: &mut ImageGarbage,
        pressure: &Mutex<Pressure>,
    ) {
        let eviction = &shared.config.upkeep.eviction;
        let mut measured = Measurements::take(shared).await;
        let mut judgement = self.judge(eviction, &measured, shared.clock.now());
        *pressure.lock() = judgement.pressure;
        let Some(at) = judgement.act_on else { return };
        if eviction.thresholds[at].signal.is_disk() {
            // Images are easier to get again than pods.
            images.make_room(shared).await;
            measured = Measurements::take(shared).await;
            judgement = self.judge(eviction, &measured, shared.clock.now());
        }
        let Some(at) = judgement.act_on else { return };
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
            tracing::warn!(pod = first.uid, resource, available = found.available, least, "evicting");
            let grace = if threshold.grace.is_some() { eviction.max_pod_grace } else { 0 };
            workers.evict(&first.uid, "Evicted", message, Some(grace.max(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn soft_thresholds_have_patience_and_pressure_stays_a_while() {
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
        assert_eq!(watch.judge(&eviction, &low, at(0)).act_on, None);
        assert!(watch.judge(&eviction, &low, at(10)).pressure.memory);
        assert_eq!(watch.judge(&eviction, &low, at(31)).act_on, Some(1));
        assert_eq!(watch.judge(&eviction, &Measurements::with_memory(50), at(32)).act_on, Some(0));
        let fine = Measurements::with_memory(500);
        assert_eq!(
            watch.judge(&eviction, &fine, at(40)),
            Judgement { pressure: Pressure { memory: true, ..Pressure::default() }, act_on: None }
        );
        assert_eq!(watch.judge(&eviction, &fine, at(100)), Judgement::default());
    }

    #[test]
    fn more_than_the_threshold_is_won_back() {
        let at = |seconds| Timestamp::from_second(seconds).expect("a time");
        let eviction = Eviction {
            thresholds: vec![Threshold { signal: Signal::Memory, least: Amount::Count(100), grace: None }],
            reclaim: BTreeMap::from([(Signal::Memory, Amount::Count(50))]),
            ..Eviction::default()
        };
        let mut watch = Watch::default();
        let mut acts = |available, seconds| {
            watch.judge(&eviction, &Measurements::with_memory(available), at(seconds)).act_on.is_some()
        };
        assert_eq!(
            [acts(120, 0), acts(90, 1), acts(120, 2), acts(160, 3), acts(120, 4)],
            [false, true, true, false, false]
        );
    }
}
