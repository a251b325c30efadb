//! Pending pods: active, backing off after a failure, or unschedulable until a change can help. Pure: the caller
//! passes the time and decides whether a change helps.

mod backoff;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

pub use backoff::Backoff;

use crate::metrics::QueueMetrics;
use crate::plugins::{PluginId, PluginSet};
use crate::state::PodInfo;

/// Metric label for the reason why a pod was queued.
const ADDED: &str = "PodAdd";
const UPDATED: &str = "PodUpdate";
const FAILED: &str = "ScheduleAttemptFailure";
const BACKED_OFF: &str = "BackoffComplete";
const TIMED_OUT: &str = "UnschedulableTimeout";
const ACTIVATED: &str = "ForceActivate";

/// Time after which an unschedulable pod is retried without an event.
pub const UNSCHEDULABLE_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// A pending pod and its history.
#[derive(Clone, Debug)]
pub struct QueuedPod {
    pub info: Arc<PodInfo>,
    /// Time when it was queued, or last failed.
    pub since: Timestamp,
    /// Time of the first attempt, for the total scheduling latency.
    pub first_tried: Option<Timestamp>,
    pub attempts: u32,
    /// Number of rejections by plugins.
    pub unschedulable: u32,
    /// Consecutive failures other than rejections, such as API errors.
    pub errors: u32,
    /// Plugins that rejected it last.
    pub rejecting: PluginSet,
    /// Plugin that gates it.
    pub gate: Option<PluginId>,
    /// It was last retried because of its time limit, without an event.
    pub was_flushed: bool,
}

impl QueuedPod {
    #[must_use]
    pub fn new(info: Arc<PodInfo>, now: Timestamp) -> Self {
        Self {
            info,
            since: now,
            first_tried: None,
            attempts: 0,
            unschedulable: 0,
            errors: 0,
            rejecting: PluginSet::default(),
            gate: None,
            was_flushed: false,
        }
    }
}

/// Order of active pods: priority, then age.
type ReadyKey = (Reverse<i32>, Timestamp, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Ready(ReadyKey),
    BackingOff(Timestamp, ReadyKey),
    Unschedulable,
}

#[derive(Debug)]
struct Entry {
    pod: QueuedPod,
    state: QueueState,
}

/// Number of pods by queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

/// Number of pods rejected by each plugin, so that an irrelevant event costs nothing.
#[derive(Debug, Default)]
struct RejectionCounts {
    counts: [usize; 32],
    set: PluginSet,
}

impl RejectionCounts {
    fn change(&mut self, plugins: PluginSet, more: bool) {
        for id in plugins.iter() {
            let count = &mut self.counts[id.index()];
            *count = if more { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 { self.set.remove(id) } else { self.set.insert(id) }
        }
    }
}

#[derive(Debug)]
pub struct Queue {
    backoff: Backoff,
    entries: HashMap<Arc<str>, Entry>,
    ready: BTreeSet<(ReadyKey, Arc<str>)>,
    backing_off: BTreeSet<(Timestamp, Arc<str>)>,
    /// Backing-off pods that may be tried early if the active queue is empty.
    early: BTreeSet<(ReadyKey, Arc<str>)>,
    unschedulable: HashMap<Arc<str>, PluginSet>,
    /// Ungated unschedulable pods, the longest waiting first.
    waiting: BTreeSet<(Timestamp, Arc<str>)>,
    /// Plugins that have rejected some pod.
    rejections: RejectionCounts,
    arrivals: u64,
    metrics: Option<QueueMetrics>,
}

impl Queue {
    #[must_use]
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            entries: HashMap::new(),
            ready: BTreeSet::new(),
            backing_off: BTreeSet::new(),
            early: BTreeSet::new(),
            unschedulable: HashMap::new(),
            waiting: BTreeSet::new(),
            rejections: RejectionCounts::default(),
            arrivals: 0,
            metrics: None,
        }
    }

    #[must_use]
    pub fn with_metrics(self, metrics: Option<QueueMetrics>) -> Self {
        Self { metrics, ..self }
    }

    /// Adds a pod; `gate` is the plugin that gates it.
    pub fn add(&mut self, info: Arc<PodInfo>, gate: Option<PluginId>, now: Timestamp) {
        self.remove(&info.uid);
        let mut pod = QueuedPod::new(info, now);
        pod.gate = gate;
        pod.rejecting.extend(gate);
        if gate.is_some() { self.put_aside(pod, ADDED) } else { self.make_ready(pod, ADDED) }
    }

    /// Requeues a pod whose attempt failed: as unschedulable if plugins rejected it, else with backoff.
    pub fn failed(&mut self, mut pod: QueuedPod, now: Timestamp) {
        if self.entries.contains_key(&pod.info.uid) {
            return;
        }
        pod.since = now;
        pod.was_flushed = false;
        if pod.rejecting.is_empty() {
            pod.errors += 1;
            self.back_off(pod, now, FAILED);
        } else {
            pod.unschedulable += 1;
            pod.errors = 0;
            self.put_aside(pod, FAILED);
        }
    }

    /// Next pod to try.
    pub fn pop(&mut self, now: Timestamp) -> Option<QueuedPod> {
        let uid = match self.ready.first() {
            Some((_, uid)) => Arc::clone(uid),
            None => Arc::clone(&self.early.first()?.1),
        };
        let mut pod = self.remove(&uid)?;
        pod.attempts += 1;
        pod.first_tried.get_or_insert(now);
        // The attempt determines the rejecting plugins again.
        pod.rejecting = PluginSet::default();
        Some(pod)
    }

    #[cfg(test)]
    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.early.is_empty()
    }

    #[must_use]
    pub fn contains(&self, uid: &str) -> bool {
        self.entries.contains_key(uid)
    }

    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&QueuedPod> {
        self.entries.get(uid).map(|entry| &entry.pod)
    }

    pub fn remove(&mut self, uid: &str) -> Option<QueuedPod> {
        let entry = self.entries.remove(uid)?;
        let uid = Arc::clone(&entry.pod.info.uid);
        match entry.state {
            QueueState::Ready(key) => {
                self.ready.remove(&(key, uid));
            }
            QueueState::BackingOff(until, key) => {
                self.backing_off.remove(&(until, Arc::clone(&uid)));
                self.early.remove(&(key, uid));
            }
            QueueState::Unschedulable => {
                if let Some(rejecting) = self.unschedulable.remove(&uid) {
                    self.rejections.change(rejecting, false);
                    if let Some(metrics) = &self.metrics {
                        metrics.track_rejected(entry.pod.info.scheduler_name(), rejecting, false);
                    }
                }
                self.waiting.remove(&(entry.pod.since, uid));
            }
        }
        Some(entry.pod)
    }

    /// Updates a pending pod. An unschedulable one is moved when `helped` is true, or when it is no longer gated.
    pub fn update(&mut self, info: Arc<PodInfo>, gate: Option<PluginId>, helped: bool, now: Timestamp) {
        let Some(entry) = self.entries.get(&info.uid) else {
            return self.add(info, gate, now);
        };
        let waits = entry.state == QueueState::Unschedulable;
        let was_gated = entry.pod.gate.is_some();
        let Some(mut pod) = self.remove(&info.uid) else { return };
        pod.info = info;
        pod.gate = gate;
        if gate.is_some() {
            pod.rejecting.extend(gate);
            self.put_aside(pod, UPDATED);
        } else if !waits || was_gated {
            self.make_ready(pod, UPDATED);
        } else if helped {
            self.back_off(pod, now, UPDATED);
        } else {
            self.put_aside(pod, UPDATED);
        }
    }

    /// True if one of these plugins has rejected some pod.
    #[must_use]
    pub fn waits_for(&self, plugins: PluginSet) -> bool {
        self.rejections.set.meets(plugins)
    }

    #[must_use]
    pub fn has_unschedulable(&self) -> bool {
        !self.unschedulable.is_empty()
    }

    /// Moves each unschedulable pod for which `helps` returns true. Gated pods stay. `event` is the change.
    pub fn wake(&mut self, now: Timestamp, event: &str, mut helps: impl FnMut(&QueuedPod) -> bool) {
        let picked: Vec<Arc<str>> = self
            .unschedulable
            .keys()
            .filter(|uid| {
                self.entries.get(*uid).is_some_and(|entry| entry.pod.gate.is_none() && helps(&entry.pod))
            })
            .cloned()
            .collect();
        for uid in picked {
            if let Some(pod) = self.remove(&uid) {
                self.back_off(pod, now, event);
            }
        }
    }

    /// Determines the gates of gated pods again, if a change concerns the plugins that gate them; `gate` returns the
    /// plugin that gates a pod now.
    pub fn recheck_gates(
        &mut self,
        now: Timestamp,
        event: &str,
        plugins: PluginSet,
        gate: impl Fn(&PodInfo) -> Option<PluginId>,
    ) {
        if self.waiting.len() == self.unschedulable.len() {
            return;
        }
        let gated = self.unschedulable.keys().filter_map(|uid| Some((uid, &self.entries.get(uid)?.pod)));
        let concerned = gated.filter(|(_, pod)| pod.gate.is_some_and(|own| plugins.contains(own)));
        let changed: Vec<_> = concerned
            .filter_map(|(uid, pod)| {
                let now_gated_by = gate(&pod.info);
                (now_gated_by != pod.gate).then(|| (Arc::clone(uid), now_gated_by))
            })
            .collect();
        for (uid, gate) in changed {
            let Some(mut pod) = self.remove(&uid) else { continue };
            pod.gate = gate;
            pod.rejecting.extend(gate);
            if gate.is_some() { self.put_aside(pod, event) } else { self.back_off(pod, now, event) }
        }
    }

    /// Activates a pod, whatever it waits for.
    pub fn activate(&mut self, uid: &str) {
        if let Some(pod) = self.remove(uid) {
            if pod.gate.is_some() { self.put_aside(pod, ACTIVATED) } else { self.make_ready(pod, ACTIVATED) }
        }
    }

    /// Retries an unschedulable pod with backoff, after a request on its behalf failed.
    pub fn retry(&mut self, uid: &str, now: Timestamp) {
        if self.entries.get(uid).is_none_or(|entry| entry.state != QueueState::Unschedulable) {
            return;
        }
        let Some(mut pod) = self.remove(uid) else { return };
        if pod.gate.is_some() {
            return self.put_aside(pod, FAILED);
        }
        pod.errors = pod.unschedulable.max(1);
        self.back_off(pod, now, FAILED);
    }

    /// Activates pods whose backoff has ended, and unschedulable pods past their time limit.
    pub fn flush(&mut self, now: Timestamp) {
        while let Some((until, uid)) = self.backing_off.first().cloned() {
            if until > now {
                break;
            }
            if let Some(pod) = self.remove(&uid) {
                self.make_ready(pod, BACKED_OFF);
            }
        }
        while let Some((since, uid)) = self.waiting.first().cloned() {
            if now.duration_since(since) <= UNSCHEDULABLE_TIMEOUT {
                break;
            }
            if let Some(mut pod) = self.remove(&uid) {
                pod.was_flushed = true;
                self.back_off(pod, now, TIMED_OUT);
            }
        }
    }

    /// Time of the next useful [`Queue::flush`].
    #[must_use]
    pub fn next_flush(&self) -> Option<Timestamp> {
        let backed_off = self.backing_off.first().map(|(until, _)| *until);
        let timeout =
            self.waiting.first().and_then(|(since, _)| since.checked_add(UNSCHEDULABLE_TIMEOUT).ok());
        backed_off.into_iter().chain(timeout).min()
    }

    #[must_use]
    pub fn depth(&self) -> Depth {
        let gated = self.unschedulable.len() - self.waiting.len();
        Depth {
            active: self.ready.len(),
            backoff: self.backing_off.len(),
            unschedulable: self.waiting.len(),
            gated,
        }
    }

    fn key(&mut self, pod: &QueuedPod) -> ReadyKey {
        self.arrivals += 1;
        (Reverse(pod.info.priority), pod.since, self.arrivals)
    }

    fn count(&self, queue: &str, event: &str) {
        if let Some(metrics) = &self.metrics {
            metrics.queued(queue, event);
        }
    }

    fn make_ready(&mut self, pod: QueuedPod, event: &str) {
        self.count("active", event);
        let key = self.key(&pod);
        let uid = Arc::clone(&pod.info.uid);
        self.ready.insert((key, Arc::clone(&uid)));
        self.entries.insert(uid, Entry { pod, state: QueueState::Ready(key) });
    }

    fn back_off(&mut self, pod: QueuedPod, now: Timestamp, event: &str) {
        let until = self.backoff.until(&pod);
        if until <= now {
            return self.make_ready(pod, event);
        }
        self.count("backoff", event);
        let key = self.key(&pod);
        let uid = Arc::clone(&pod.info.uid);
        self.backing_off.insert((until, Arc::clone(&uid)));
        // Backoff is for the benefit of other pods; if there are none, a pod that a change may have helped is tried
        // immediately. After an error it backs off in any case.
        if pod.errors == 0 {
            self.early.insert((key, Arc::clone(&uid)));
        }
        self.entries.insert(uid, Entry { pod, state: QueueState::BackingOff(until, key) });
    }

    fn put_aside(&mut self, pod: QueuedPod, event: &str) {
        self.count("unschedulable", event);
        if let Some(metrics) = &self.metrics {
            metrics.track_rejected(pod.info.scheduler_name(), pod.rejecting, true);
        }
        let uid = Arc::clone(&pod.info.uid);
        self.rejections.change(pod.rejecting, true);
        self.unschedulable.insert(Arc::clone(&uid), pod.rejecting);
        if pod.gate.is_none() {
            self.waiting.insert((pod.since, Arc::clone(&uid)));
        }
        self.entries.insert(uid, Entry { pod, state: QueueState::Unschedulable });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("a time")
    }

    fn rejected_by(name: &str) -> PluginSet {
        let mut set = PluginSet::default();
        set.extend(PluginId::named(name));
        set
    }

    fn names(queue: &mut Queue, now: Timestamp) -> Vec<String> {
        std::iter::from_fn(|| queue.pop(now)).map(|pod| pod.info.name.to_string()).collect()
    }

    #[test]
    fn pop_orders_by_priority_then_age() {
        let mut queue = Queue::new(Backoff::default());
        queue.add(pod("old").info(), None, at(0));
        queue.add(pod("young").info(), None, at(2));
        queue.add(pod("vip").priority(10).info(), None, at(3));
        queue.add(pod("middle").info(), None, at(1));
        assert_eq!(names(&mut queue, at(4)), ["vip", "old", "middle", "young"]);
    }

    #[test]
    fn rejected_pod_waits_for_helpful_change() {
        let mut queue = Queue::new(Backoff::default());
        queue.add(pod("p").info(), None, at(0));
        let mut tried = queue.pop(at(0)).expect("a pod");
        tried.rejecting = rejected_by("NodeResourcesFit");
        queue.failed(tried, at(0));
        assert!(!queue.has_ready());
        assert!(queue.waits_for(rejected_by("NodeResourcesFit")));
        assert!(!queue.waits_for(rejected_by("NodePorts")));
        queue.wake(at(0), "NodeAdd", |_| false);
        assert!(!queue.has_ready());
        queue.wake(at(0), "NodeAdd", |waiting| waiting.rejecting == rejected_by("NodeResourcesFit"));
        assert_eq!(queue.depth(), Depth { backoff: 1, ..Depth::default() });
        // The active queue is empty, so the backoff of one second is skipped.
        let again = queue.pop(at(0)).expect("the pod again");
        assert_eq!((again.attempts, again.unschedulable), (2, 1));
    }

    #[test]
    fn pod_after_error_backs_off_fully() {
        let mut queue = Queue::new(Backoff::default());
        queue.add(pod("p").info(), None, at(0));
        for (attempt, wait) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (6, 10)] {
            let start = at(attempt * 100);
            queue.flush(start);
            let tried = queue.pop(start).expect("a pod");
            queue.failed(tried, start);
            assert!(queue.pop(start).is_none());
            assert_eq!(queue.next_flush(), Some(at(attempt * 100 + wait)));
        }
    }

    #[test]
    fn pod_after_failed_request_on_its_behalf_backs_off_fully() {
        let mut queue = Queue::new(Backoff::default());
        queue.add(pod("p").info(), None, at(0));
        for (attempt, wait) in [(1, 1), (2, 2), (3, 4)] {
            let start = at(attempt * 100);
            queue.flush(start);
            let mut tried = queue.pop(start).expect("a pod");
            tried.rejecting = rejected_by("DynamicResources");
            queue.failed(tried, start);
            queue.retry("p", start);
            assert!(queue.pop(start).is_none());
            assert_eq!(queue.next_flush(), Some(at(attempt * 100 + wait)));
        }
        // One that was moved meanwhile keeps its place.
        queue.flush(at(1000));
        queue.retry("p", at(1000));
        assert!(queue.pop(at(1000)).is_some());
    }

    #[test]
    fn gated_pod_is_activated_after_gate_removal() {
        let mut queue = Queue::new(Backoff::default());
        let gate = PluginId::named("SchedulingGates");
        queue.add(pod("p").info(), gate, at(0));
        assert!(!queue.has_ready());
        queue.wake(at(0), "NodeAdd", |_| true);
        queue.flush(at(10_000));
        assert!(!queue.has_ready());
        assert_eq!(queue.depth().gated, 1);
        queue.update(pod("p").label("a", "b").info(), None, false, at(1));
        let opened = queue.pop(at(1)).expect("the pod");
        assert_eq!(opened.info.labels.get("a"), Some("b"));
    }

    #[test]
    fn unschedulable_pod_is_retried_after_timeout() {
        let mut queue = Queue::new(Backoff::default());
        queue.add(pod("p").info(), None, at(0));
        let mut tried = queue.pop(at(0)).expect("a pod");
        tried.rejecting = rejected_by("NodeAffinity");
        queue.failed(tried, at(0));
        assert_eq!(queue.next_flush(), Some(at(300)));
        queue.flush(at(300));
        assert!(!queue.has_ready());
        queue.flush(at(301));
        assert!(queue.has_ready());
    }

    #[test]
    fn update_keeps_queue_position() {
        let mut queue = Queue::new(Backoff::default());
        queue.add(pod("p").info(), None, at(0));
        queue.add(pod("q").info(), None, at(1));
        queue.update(pod("q").priority(5).info(), None, false, at(2));
        assert_eq!(names(&mut queue, at(2)), ["q", "p"]);
        queue.add(pod("gone").info(), None, at(0));
        assert!(queue.remove("gone").is_some());
        assert!(queue.pop(at(0)).is_none());
    }
}
