//! The work queue: every key at most once in it, never worked on by two at once; delays, and retries that wait longer
//! and longer. An empty queue costs nothing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use base::clock::deadline_after;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::QueueMetrics;

/// Kubernetes' defaults for retries: per key from 5 ms doubling to 1000 s, and 10 per second over all after a burst of
/// 100.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_secs(1000);
const RETRIES_PER_SECOND: f64 = 10.0;
const BURST: f64 = 100.0;

/// The latest revisions whose changes put a key into the queue; none if it was a timer or a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// Of the object that the key names, latest first; zero where there are not so many.
    pub object: [u64; 4],
    /// Of anything else.
    pub others: Option<u64>,
}

impl Trigger {
    /// The change of something that is not the key's own object.
    #[must_use]
    pub fn other(revision: Option<&str>) -> Self {
        Self { others: number(revision), ..Self::default() }
    }

    /// The change of the key's own object.
    #[must_use]
    pub fn object(revision: Option<&str>) -> Self {
        Self { object: [number(revision).unwrap_or(0), 0, 0, 0], others: None }
    }

    /// Changes of several kinds come through several watches, which may overtake each other: revisions tell.
    fn add(&mut self, more: Self) {
        for revision in more.object {
            // The place of the earliest one, if there are too many.
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
    /// In `ready`, or to be put there when the work on it is done.
    dirty: HashMap<T, (Trigger, Instant)>,
    processing: HashMap<T, Instant>,
    delayed: BinaryHeap<Reverse<(Instant, u64)>>,
    delays: HashMap<u64, T>,
    /// The earliest time each key is due, to drop the later of two delays.
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

    /// Puts a key into the queue unless it is there.
    pub fn add(&self, key: T) {
        self.add_for(key, Trigger::default());
    }

    /// As [`Queue::add`], remembering the latest revision that asked for it.
    pub fn add_for(&self, key: T, trigger: Trigger) {
        let mut state = self.shared.state.lock();
        if self.shared.put(&mut state, key, trigger) {
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    /// Puts a key into the queue after a while, at most [`base::clock::LONGEST_DELAY`]; of several whiles the shortest
    /// counts.
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
            // A worker that sleeps has to sleep less.
            self.shared.wake.notify_one();
        }
    }

    /// Puts a key whose work failed into the queue, later the more often it failed.
    pub fn retry(&self, key: T) {
        let delay = {
            let mut state = self.shared.state.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            let own = FIRST_RETRY.saturating_mul(2u32.saturating_pow((*failures).min(30))).min(LONGEST_RETRY);
            *failures = failures.saturating_add(1);
            own.max(state.token())
        };
        if let Some(metrics) = &self.shared.metrics {
            metrics.retries.inc();
        }
        self.add_after(key, delay);
    }

    /// The work on a key succeeded: its next failure is its first.
    pub fn forget(&self, key: &T) {
        self.shared.state.lock().failures.remove(key);
    }

    /// How often the work on a key has failed in a row.
    #[must_use]
    pub fn failures(&self, key: &T) -> u32 {
        self.shared.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Keys that wait for a worker.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key; nobody else gets it before [`Queue::done`]. Nothing once the queue has stopped.
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
                    }
                    if !state.ready.is_empty() {
                        // Several may have become due at once, and only this worker was woken.
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

    /// The work on a key is over; if it was asked for meanwhile, it is next in line again.
    pub fn done(&self, key: &T) {
        let mut state = self.shared.state.lock();
        if let (Some(begin), Some(metrics)) = (state.processing.remove(key), &self.shared.metrics) {
            metrics.worked.observe(begin.elapsed().as_secs_f64());
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

    /// Nobody gets a key any more.
    pub fn stop(&self) {
        self.shared.state.lock().stopped = true;
        self.shared.wake.notify_waiters();
        // For one that is about to wait.
        self.shared.wake.notify_one();
    }
}

impl<T: Clone + Eq + Hash> Shared<T> {
    /// Whether a worker has to be woken.
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

    /// Moves what is due from the delayed to the ready.
    fn ripen(&self, state: &mut State<T>) {
        let now = Instant::now();
        let mut ripe = HashSet::new();
        while let Some(Reverse((at, number))) = state.delayed.peek().copied() {
            // Those that an earlier delay replaced have no key any more.
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
    /// Takes a token from the bucket of retries; how long until it is there.
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
    async fn a_key_is_in_it_once_and_with_one_worker() {
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
    async fn delays_end_and_the_shorter_counts() {
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
    async fn a_sleeping_worker_is_woken_by_a_shorter_delay() {
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
    async fn delay_of_any_length_does_not_panic() {
        let queue = queue();
        queue.add_after("a", Duration::from_secs(i64::MAX.unsigned_abs()));
        queue.add_after("b", Duration::MAX);
        queue.add_after("c", Duration::from_secs(1));
        assert_eq!(queue.get().await.expect("a key").0, "c");
        queue.done(&"c");
        // What is due later than any timer is looked at once more before.
        let begin = Instant::now();
        assert_eq!(queue.get().await.expect("a key").0, "a");
        assert!(begin.elapsed() <= base::clock::LONGEST_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_and_longer_until_forgotten() {
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
    async fn stopping_wakes_the_workers() {
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
