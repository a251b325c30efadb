//! API priority and fairness: chooses the next request when there are more than the server can execute.
//!
//! A FlowSchema assigns a request to a priority level; a level has seats and, when they are taken, queues. Levels
//! borrow seats from each other. Within a level, flows (users, or namespaces) get equal service: see [`queue_set`].
//! Unlike Kubernetes, Ferry also limits starts per [`turns`].

mod allocation;
mod dealer;
mod demand;
mod dropped;
mod dump;
mod estimate;
mod follow;
mod histogram;
mod level;
mod metrics;
mod objects;
mod plan;
mod queue_set;
mod turns;
mod watches;
mod work;

pub use watches::Watched;

use crate::context::Context;
use crate::registry::Registry;
use arc_swap::ArcSwap;
use base::tasks::TaskGroup;
use http::HeaderValue;
use level::{Arrival, Entry, Level};
use parking_lot::Mutex;
use plan::{FairnessPlan, Ledger};
use queue_set::RejectReason;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use turns::Turns;
use watches::Watches;

/// 429 responses are delayed by a random time, so that rejected clients retry neither immediately nor in lockstep.
const REJECTION_DELAY_MILLIS: std::ops::Range<u64> = 250..750;
/// Maximum number of delayed rejections, because each costs memory.
const MAX_DELAYED_REJECTIONS: usize = 4096;

pub struct Fairness {
    registry: Arc<Registry>,
    plan: ArcSwap<FairnessPlan>,
    ledger: Mutex<Ledger>,
    turns: Turns,
    watches: Arc<Watches>,
    hasher: RandomState,
    tasks: OnceLock<TaskGroup>,
    epoch: Instant,
    /// Time of the next seat rebalancing, in milliseconds since the epoch. No timer: the first request after it
    /// rebalances.
    next_lending: AtomicU64,
    delayed_rejections: AtomicUsize,
    /// Set once the server has started: mandatory objects are maintained and statuses written.
    maintaining: AtomicBool,
    maintained: Notify,
    status_writes: Mutex<follow::StatusWrites>,
}

/// Seats of a request, released on drop.
pub struct Seat {
    fairness: Arc<Fairness>,
    level: Arc<Level>,
    key: usize,
}

/// UIDs of a request's schema and priority level.
#[derive(Clone, Debug)]
pub struct Classification {
    pub schema_uid: HeaderValue,
    pub level_uid: HeaderValue,
}

/// Rejection with its `Retry-After` in seconds.
#[derive(Debug)]
pub struct Rejected {
    pub retry_after: u64,
}

impl Fairness {
    /// `total` is the number of seats of the server.
    pub fn new(registry: Arc<Registry>, total: usize) -> Self {
        let now = Instant::now();
        let mut ledger = Ledger::new(total.max(1));
        let plan = ledger.digest(Vec::new(), Vec::new(), now);
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            registry,
            plan: ArcSwap::from_pointee(plan),
            ledger: Mutex::new(ledger),
            turns: Turns::new(workers),
            watches: Arc::default(),
            hasher: RandomState::new(),
            tasks: OnceLock::new(),
            epoch: now,
            next_lending: AtomicU64::new(millis(demand::PERIOD)),
            delayed_rejections: AtomicUsize::new(0),
            maintaining: AtomicBool::new(false),
            maintained: Notify::new(),
            status_writes: Mutex::default(),
        }
    }

    /// Collector of the metrics.
    pub fn collector(self: &Arc<Self>) -> Result<metrics::FairnessCollector, prometheus::Error> {
        metrics::FairnessCollector::new(self.clone())
    }

    /// Starts the turns and the watch of the configuration objects.
    pub fn spawn(self: &Arc<Self>, tasks: &TaskGroup) {
        let _ = self.tasks.set(tasks.clone());
        self.begin_turns(tasks);
        self.follow(tasks);
    }

    fn begin_turns(self: &Arc<Self>, tasks: &TaskGroup) {
        let (fairness, group) = (self.clone(), tasks.clone());
        tasks.spawn(async move {
            group.until_stopped(fairness.run_turns()).await;
            // Waiting requests are still served while the server drains.
            fairness.turns.end();
            fairness.serve(usize::MAX);
        });
    }

    async fn run_turns(&self) {
        loop {
            self.turns.ending().await;
            loop {
                // The runtime polls its sockets before this task continues: that ends a turn.
                tokio::task::yield_now().await;
                self.turns.begin();
                self.serve(self.turns.size());
                if !self.turns.is_over() {
                    break;
                }
            }
        }
    }

    /// Dispatches waiting requests, level by level, about the same number each.
    fn serve(&self, places: usize) {
        let now = Instant::now();
        let levels: Vec<Arc<Level>> = self.ledger.lock().levels.values().cloned().collect();
        let busy: Vec<_> = levels.into_iter().filter(|level| level.state().set.wants_turn()).collect();
        let each = places.checked_div(busy.len()).unwrap_or(1).max(1);
        for round in [each, usize::MAX] {
            for level in &busy {
                level.serve(now, &self.turns, round);
            }
        }
    }

    /// Waits for a seat, at most until `deadline`. The classification is returned in any case.
    pub async fn enter(
        self: &Arc<Self>,
        context: &Context,
        now: Instant,
        deadline: Instant,
    ) -> (Option<Classification>, Result<Seat, Rejected>) {
        let plan = self.plan.load();
        let Some(schema) = plan.schema_of(context) else {
            return (None, Err(Rejected { retry_after: 1 }));
        };
        let about = schema.about(context);
        let flow = self.hasher.hash_one((&*schema.name, about.flow()));
        let (work, watches) = estimate::estimate(context, &self.watches, schema.max_seats);
        let arrival = Arrival { schema: schema.slot, flow, work, about, watches };
        let level = schema.level.clone();
        let classification =
            Classification { schema_uid: schema.uids.0.clone(), level_uid: schema.uids.1.clone() };
        drop(plan);
        self.lend_if_due(now);
        let outcome = match level.arrive(now, &self.turns, arrival) {
            Entry::Seated(key) => Ok(Seat { fairness: self.clone(), level, key }),
            Entry::Waiting(id, ready) => self.wait(level, id, ready, deadline).await,
            Entry::Rejected(refusal, retry_after) => {
                if refusal == RejectReason::QueueFull {
                    self.delay_rejection().await;
                }
                Err(Rejected { retry_after })
            }
        };
        (Some(classification), outcome)
    }

    async fn wait(
        self: &Arc<Self>,
        level: Arc<Level>,
        id: u64,
        ready: oneshot::Receiver<usize>,
        deadline: Instant,
    ) -> Result<Seat, Rejected> {
        self.await_releases(&level);
        let mut pending =
            PendingSeat { fairness: self.clone(), level: level.clone(), id, ready: Some(ready) };
        let Some(ready) = pending.ready.as_mut() else { return Err(Rejected { retry_after: 1 }) };
        if let Ok(Ok(key)) = tokio::time::timeout_at(deadline.into(), ready).await {
            pending.ready = None;
            return Ok(Seat { fairness: self.clone(), level, key });
        }
        match pending.resolve() {
            WaitOutcome::Seated(key) => Ok(Seat { fairness: self.clone(), level, key }),
            WaitOutcome::Gone(retry_after) => Err(Rejected { retry_after }),
        }
    }

    /// Counts a watch until it ends.
    pub fn watched(&self, context: &Context) -> Option<Watched> {
        self.watches.register(&context.info, context.query.text("fieldSelector"))
    }

    async fn delay_rejection(&self) {
        if self.delayed_rejections.fetch_add(1, Ordering::Relaxed) < MAX_DELAYED_REJECTIONS {
            let _counted = DecrementOnDrop(&self.delayed_rejections);
            tokio::time::sleep(Duration::from_millis(rand::random_range(REJECTION_DELAY_MILLIS))).await;
        } else {
            self.delayed_rejections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn lend_if_due(&self, now: Instant) {
        let elapsed = millis(now.saturating_duration_since(self.epoch));
        if elapsed < self.next_lending.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut ledger) = self.ledger.try_lock()
            && elapsed >= self.next_lending.load(Ordering::Relaxed)
        {
            self.next_lending.store(elapsed + millis(demand::PERIOD), Ordering::Relaxed);
            ledger.levels.retain(|_, level| {
                let state = level.state();
                !(state.quiescing && state.is_idle())
            });
            ledger.lend(now);
            let levels: Vec<_> = ledger.levels.values().cloned().collect();
            drop(ledger);
            levels.iter().for_each(|level| level.serve(now, &self.turns, usize::MAX));
        }
    }

    /// Wakes waiting requests when seats become free that stayed taken after their request; no request end does that.
    fn await_releases(self: &Arc<Self>, level: &Arc<Level>) {
        if !level.needs_release() {
            return;
        }
        let (fairness, level) = (self.clone(), level.clone());
        self.tasks.get_or_init(TaskGroup::new).spawn(async move {
            while let Some(when) = level.await_release(Instant::now(), &fairness.turns) {
                tokio::time::sleep_until(when.into()).await;
            }
        });
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

struct DecrementOnDrop<'a>(&'a AtomicUsize);

impl Drop for DecrementOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A waiting request. Dropping it leaves the queue, or releases a seat that was granted at the same moment.
struct PendingSeat {
    fairness: Arc<Fairness>,
    level: Arc<Level>,
    id: u64,
    ready: Option<oneshot::Receiver<usize>>,
}

enum WaitOutcome {
    Seated(usize),
    Gone(u64),
}

impl PendingSeat {
    fn resolve(&mut self) -> WaitOutcome {
        let Some(mut ready) = self.ready.take() else { return WaitOutcome::Gone(1) };
        match self.level.give_up(Instant::now(), &self.fairness.turns, self.id) {
            Some(retry_after) => WaitOutcome::Gone(retry_after),
            None => ready.try_recv().map_or(WaitOutcome::Gone(1), WaitOutcome::Seated),
        }
    }
}

impl Drop for PendingSeat {
    fn drop(&mut self) {
        if let WaitOutcome::Seated(key) = self.resolve() {
            self.level.leave(Instant::now(), &self.fairness.turns, key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.level.leave(Instant::now(), &self.fairness.turns, self.key) {
            self.fairness.await_releases(&self.level);
        }
    }
}

#[cfg(test)]
mod tests;
