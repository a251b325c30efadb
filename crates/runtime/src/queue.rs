//! The work queue: every key is queued at most once and never processed by two workers; supports delays, and retries
//! with exponential backoff. An idle queue costs nothing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::clock::deadline_after;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::QueueMetrics;

/// Kubernetes' defaults for retries: per key from 5 ms doubling to 1000 s, and 10 per second overall after a burst of
/// 100.
const RETRY: Backoff = Backoff::new(Duration::from_millis(5), LONGEST_RETRY);
const LONGEST_RETRY: Duration = Duration::from_secs(1000);
const RETRIES_PER_SECOND: f64 = 10.0;
const BURST: f64 = 100.0;

/// Latest revisions whose changes enqueued a key; empty for a timer or a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// Revisions of the key's own object, latest first; unused entries are zero.
    pub object: [u64; 4],
    /// Latest revision of any other object.
    pub others: Option<u64>,
}

impl Trigger {
    /// A change of an object other than the key's own.
    #[must_use]
    pub fn other(revision: Option<&str>) -> Self {
        Self { others: number(revision), ..Self::default() }
    }

    /// A change of the key's own object.
    #[must_use]
    pub fn object(revision: Option<&str>) -> Self {
        Self { object: [number(revision).unwrap_or(0), 0, 0, 0], others: None }
    }

    /// Merges triggers by revision: watches of different kinds may overtake each other.
    fn add(&mut self, more: Self) {
        for revision in more.object {
            // Index of the earliest revision, if the array is full.
            let last = self.object.len() - 1;
            if !self.object.contains(&revision) && revision > self.object[last] {
                self.object[last] = revision;
                self.object.sort_unstable_by(|one, other| other.cmp(one));
            }
        }
        self.others = self.others.max(more.others);
    }
}

fn number(revision: Option<&str>) -> Option<u64> {
    revision?.parse().ok()
}

/// A queue of keys. Clones share it.
///
/// ```
/// use runtime::Queue;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let queue = Queue::default();
/// queue.add("pod-1");
/// queue.add("pod-1"); // Queued once.
/// let (key, _trigger) = queue.get().await.expect("not stopped");
/// queue.add(key); // Queued again when it is done.
/// queue.done(&key);
/// assert_eq!(queue.get().await.map(|(key, _)| key), Some("pod-1"));
/// queue.stop();
/// # }
/// ```
#[derive(Clone)]
pub struct Queue<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    metrics: Option<QueueMetrics>,
}

struct State<T> {
    ready: VecDeque<T>,
    /// In `ready`, or to be added to it when the key is done.
    dirty: HashMap<T, (Trigger, Instant)>,
    processing: HashMap<T, Instant>,
    delayed: BinaryHeap<Reverse<(Instant, u64)>>,
    delays: HashMap<u64, T>,
    /// Earliest due time of each key, to drop the later of two delays.
    due: HashMap<T, (Instant, u64)>,
    next_delay: u64,
    failures: HashMap<T, u32>,
    tokens: f64,
    refilled: Instant,
    stopped: bool,
}

impl<T: Clone + Eq + Hash> Default for Queue<T> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<T: Clone + Eq + Hash> Queue<T> {
    #[must_use]
    pub fn new(metrics: Option<QueueMetrics>) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            delayed: BinaryHeap::new(),
            delays: HashMap::new(),
            due: HashMap::new(),
            next_delay: 0,
            failures: HashMap::new(),
            tokens: BURST,
            refilled: Instant::now(),
            stopped: false,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), wake: Notify::new(), metrics }) }
    }

    /// Enqueues a key unless it is queued.
    pub fn add(&self, key: T) {
        self.add_for(key, Trigger::default());
    }

    /// As [`Queue::add`], and records the latest revision that enqueued it.
    pub fn add_for(&self, key: T, trigger: Trigger) {
        let mut state = self.shared.state.lock();
        if self.shared.put(&mut state, key, trigger) {
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    /// Enqueues a key after a delay of at most [`base::clock::LONGEST_DELAY`]; of several delays the shortest
    /// applies.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let mut state = self.shared.state.lock();
        let at = deadline_after(delay);
        if state.stopped || state.due.get(&key).is_some_and(|(earlier, _)| *earlier <= at) {
            return;
        }
        let number = state.next_delay;
        state.next_delay += 1;
        if let Some((_, old)) = state.due.insert(key.clone(), (at, number)) {
            state.delays.remove(&old);
        }
        let first = state.delayed.peek().is_none_or(|Reverse((earliest, _))| at < *earliest);
        state.delays.insert(number, key);
        state.delayed.push(Reverse((at, number)));
        drop(state);
        if first {
            // A sleeping worker must wake up earlier.
            self.shared.wake.notify_one();
        }
    }

    /// Enqueues a failed key with backoff.
    pub fn retry(&self, key: T) {
        let delay = {
            let mut state = self.shared.state.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures = failures.saturating_add(1);
            let own = RETRY.after(*failures);
            own.max(state.token())
        };
        if let Some(metrics) = &self.shared.metrics {
            metrics.retries.inc();
        }
        self.add_after(key, delay);
    }

    /// Resets the failure count of a key.
    pub fn forget(&self, key: &T) {
        self.shared.state.lock().failures.remove(key);
    }

    /// Number of consecutive failures of a key.
    #[must_use]
    pub fn failures(&self, key: &T) -> u32 {
        self.shared.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Number of keys that wait for a worker.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Next key; no other worker gets it before [`Queue::done`]. `None` once the queue has stopped.
    pub async fn get(&self) -> Option<(T, Trigger)> {
        loop {
            let notified = self.shared.wake.notified();
            let sleep_until = {
                let mut state = self.shared.state.lock();
                if state.stopped {
                    return None;
                }
                self.shared.ripen(&mut state);
                if let Some(key) = state.ready.pop_front() {
                    let now = Instant::now();
                    let (trigger, since) = state.dirty.remove(&key).unwrap_or((Trigger::default(), now));
                    state.processing.insert(key.clone(), now);
                    if let Some(metrics) = &self.shared.metrics {
                        metrics.depth.set(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
                        metrics.waited.observe(now.duration_since(since).as_secs_f64());
                        metrics.running.begin(now);
                    }
                    if !state.ready.is_empty() {
                        // Several keys may be due, and only this worker was woken.
                        self.shared.wake.notify_one();
                    }
                    return Some((key, trigger));
                }
                state.delayed.peek().map(|Reverse((at, _))| *at)
            };
            match sleep_until {
                Some(at) => tokio::select! {
                    () = notified => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => notified.await,
            }
        }
    }

    /// Marks a key as done; if it was added meanwhile, it is queued again.
    pub fn done(&self, key: &T) {
        let mut state = self.shared.state.lock();
        if let (Some(begin), Some(metrics)) = (state.processing.remove(key), &self.shared.metrics) {
            metrics.worked.observe(begin.elapsed().as_secs_f64());
            metrics.running.end(begin);
        }
        if state.dirty.contains_key(key) && !state.stopped {
            state.ready.push_back(key.clone());
            if let Some(metrics) = &self.shared.metrics {
                metrics.depth.set(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
            }
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    /// Stops the queue: workers get no more keys.
    pub fn stop(&self) {
        self.shared.state.lock().stopped = true;
        self.shared.wake.notify_waiters();
        // For a worker that will wait next.
        self.shared.wake.notify_one();
    }
}

impl<T: Clone + Eq + Hash> Shared<T> {
    /// Returns true if a worker must be woken.
    fn put(&self, state: &mut State<T>, key: T, trigger: Trigger) -> bool {
        if state.stopped {
            return false;
        }
        if let Some(metrics) = &self.metrics {
            metrics.adds.inc();
        }
        if let Some((known, _)) = state.dirty.get_mut(&key) {
            known.add(trigger);
            return false;
        }
        state.dirty.insert(key.clone(), (trigger, Instant::now()));
        if state.processing.contains_key(&key) {
            return false;
        }
        state.ready.push_back(key);
        if let Some(metrics) = &self.metrics {
            metrics.depth.set(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
        }
        true
    }

    /// Moves due keys from `delayed` to `ready`.
    fn ripen(&self, state: &mut State<T>) {
        let now = Instant::now();
        let mut ripe = HashSet::new();
        while let Some(Reverse((at, number))) = state.delayed.peek().copied() {
            // Entries that an earlier delay replaced have no key.
            let Some(key) = state.delays.get(&number).cloned() else {
                state.delayed.pop();
                continue;
            };
            if at > now {
                break;
            }
            state.delayed.pop();
            state.delays.remove(&number);
            state.due.remove(&key);
            if ripe.insert(key.clone()) {
                self.put(state, key, Trigger::default());
            }
        }
    }
}

impl<T> State<T> {
    /// Takes a token from the retry bucket; returns the time until it is available.
    fn token(&mut self) -> Duration {
        let now = Instant::now();
        let elapsed = now.duration_since(self.refilled).as_secs_f64();
        self.refilled = now;
        self.tokens = (self.tokens + elapsed * RETRIES_PER_SECOND).min(BURST) - 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / RETRIES_PER_SECOND).unwrap_or(LONGEST_RETRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::default()
    }

    async fn take(queue: &Queue<&'static str>) -> Option<&'static str> {
        tokio::time::timeout(Duration::from_millis(1), queue.get()).await.ok().flatten().map(|(key, _)| key)
    }

    #[tokio::test(start_paused = true)]
    async fn queue_key_added_twice_has_one_worker() {
        let queue = queue();
        queue.add_for("a", Trigger::other(Some("1")));
        queue.add_for("a", Trigger::other(Some("10")));
        queue.add_for("a", Trigger::object(Some("7")));
        queue.add_for("a", Trigger::object(Some("5")));
        queue.add_for("a", Trigger::other(Some("2")));
        queue.add("a");
        let (key, trigger) = queue.get().await.expect("a key");
        assert_eq!((key, trigger), ("a", Trigger { object: [7, 5, 0, 0], others: Some(10) }));
        queue.add("a");
        assert_eq!(take(&queue).await, None, "it is being worked on");
        queue.done(&"a");
        assert_eq!(take(&queue).await, Some("a"));
        queue.done(&"a");
        assert_eq!(take(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn queue_two_delays_use_the_shorter() {
        let queue = queue();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(2));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("b", Duration::from_secs(3));
        let begin = Instant::now();
        assert_eq!(queue.get().await.expect("a key").0, "a");
        assert_eq!(begin.elapsed().as_secs(), 2);
        queue.done(&"a");
        assert_eq!(queue.get().await.expect("a key").0, "b");
        assert_eq!(begin.elapsed().as_secs(), 3);
        queue.done(&"b");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(take(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn queue_shorter_delay_wakes_sleeping_worker() {
        let queue = queue();
        queue.add_after("late", Duration::from_secs(60));
        let worker = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await.map(|(key, _)| key) }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        queue.add_after("soon", Duration::from_secs(1));
        assert_eq!(worker.await.expect("no panic"), Some("soon"));
    }

    #[tokio::test(start_paused = true)]
    async fn queue_delay_of_any_length_does_not_panic() {
        let queue = queue();
        queue.add_after("a", Duration::from_secs(i64::MAX.unsigned_abs()));
        queue.add_after("b", Duration::MAX);
        queue.add_after("c", Duration::from_secs(1));
        assert_eq!(queue.get().await.expect("a key").0, "c");
        queue.done(&"c");
        // Delays beyond the longest timer are re-armed.
        let begin = Instant::now();
        assert_eq!(queue.get().await.expect("a key").0, "a");
        assert!(begin.elapsed() <= base::clock::LONGEST_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn queue_failures_back_off_until_forgotten() {
        let queue = queue();
        let mut waits = Vec::new();
        for _ in 0..4 {
            let begin = Instant::now();
            queue.retry("a");
            queue.get().await.expect("a key");
            waits.push(begin.elapsed().as_millis());
            queue.done(&"a");
        }
        assert_eq!(waits, [5, 10, 20, 40]);
        assert_eq!(queue.failures(&"a"), 4);
        queue.forget(&"a");
        assert_eq!(queue.failures(&"a"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn queue_stop_wakes_workers() {
        let queue = queue();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.get().await.is_none() })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(10)).await;
        queue.stop();
        for worker in workers {
            assert!(worker.await.expect("no panic"));
        }
    }
}
