//! Last change trigger time of endpoints: the value of an annotation for measuring the latency until proxies are
//! programmed.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use objects::core::v1::{Pod, Service};
use objects::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use runtime::Key;

pub const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// State of each service at its last reconciliation.
#[derive(Debug, Default)]
pub struct TriggerTimes {
    known: Mutex<HashMap<Key, State>>,
}

#[derive(Debug)]
struct State {
    service: Timestamp,
    pods: HashMap<String, Timestamp>,
}

/// Sets the annotation on an object before it is written; removes it without a time.
pub fn stamp(meta: &mut ObjectMeta, since: Option<Timestamp>) {
    let annotations = meta.annotations.get_or_insert_default();
    match since {
        Some(since) => annotations.insert(ANNOTATION.to_owned(), since.to_string()),
        None => annotations.remove(ANNOTATION),
    };
    if annotations.is_empty() {
        meta.annotations = None;
    }
}

impl TriggerTimes {
    /// Earliest change since the last reconciliation: of the readiness of pods, or of the service's creation.
    pub fn observe(&self, key: &Key, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let created = service.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
        let pods: HashMap<String, Timestamp> =
            pods.iter().filter_map(|pod| Some((pod.metadata.name.clone()?, ready_since(pod)?))).collect();
        let state = State { service: created, pods };
        let mut known = self.known.lock();
        let Some(before) = known.get(key) else {
            known.insert(key.clone(), state);
            return (created != Timestamp::MIN).then_some(created);
        };
        let changed = state
            .pods
            .iter()
            .filter(|(name, time)| before.pods.get(*name).is_none_or(|known| *time > known))
            .map(|(_, time)| *time)
            .chain((created > before.service).then_some(created))
            .min();
        known.insert(key.clone(), state);
        changed
    }

    pub fn forget(&self, key: &Key) {
        self.known.lock().remove(key);
    }
}

/// Last transition time of a pod's readiness.
fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, pod, ready_at, time};

    #[test]
    fn trigger_time_is_earliest_unobserved_change() {
        let times = TriggerTimes::default();
        let key = Key::new("ns", "web");
        let mut service = Service { metadata: meta("web"), ..Service::default() };
        service.metadata.creation_timestamp = Some(time(10));
        let ready = |name: &str, at| Arc::new(ready_at(pod(name, "Running"), at));
        for (pods, expected) in [
            (vec![ready("a", 5)], Some(10)),
            (vec![ready("a", 5)], None),
            (vec![ready("a", 5), ready("b", 30), ready("c", 20)], Some(20)),
            (vec![ready("a", 40), ready("b", 30), ready("c", 20)], Some(40)),
            (vec![], None),
        ] {
            let seen = times.observe(&key, &service, &pods);
            assert_eq!(seen, expected.map(|at| time(at).0), "{expected:?}");
        }
        times.forget(&key);
        assert_eq!(times.observe(&key, &service, &[]), Some(time(10).0));
    }
}
