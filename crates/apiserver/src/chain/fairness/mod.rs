//! Priority and fairness: whose request is next when there are more than the server can serve at once.
//!
//! A FlowSchema says to which priority level a request belongs; a level has seats and, when they are taken, queues.
//! Levels borrow seats from each other. Within a level, flows (users, or namespaces) are served evenly: see
//! [`queue_set`]. What is particular to Ferry are its [`turns`].

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
use plan::{Ledger, Plan};
use queue_set::Refusal;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use turns::Turns;
use watches::Watches;

/// A flood is told to go away, but not at once: it would be back the sooner. Nor all of it at the same time: it would be
/// back together.
const RELUCTANCE: std::ops::Range<u64> = 250..750;
/// So many are made to wait for a refusal; they cost memory.
const MAX_RELUCTANT: usize = 4096;

pub struct Fairness {
    registry: Arc<Registry>,
    plan: ArcSwap<Plan>,
    ledger: Mutex<Ledger>,
    turns: Turns,
    watches: Arc<Watches>,
    hasher: RandomState,
    tasks: OnceLock<TaskGroup>,
    epoch: Instant,
    /// When seats are lent anew, in milliseconds since the epoch. Nobody waits for it: whoever comes later sees to it.
    next_lending: AtomicU64,
    reluctant: AtomicUsize,
    /// The server has started: objects are kept and statuses written.
    maintaining: AtomicBool,
    maintained: Notify,
    status_writes: Mutex<follow::StatusWrites>,
}

/// The place of a request, given back when dropped.
pub struct Seat {
    fairness: Arc<Fairness>,
    level: Arc<Level>,
    key: usize,
}

/// UIDs of the schema and the level a request belongs to.
#[derive(Clone, Debug)]
pub struct Classification {
    pub schema_uid: HeaderValue,
    pub level_uid: HeaderValue,
}

/// There is no room; come back after so many seconds.
#[derive(Debug)]
pub struct Refused {
    pub retry_after: u64,
}

impl Fairness {
    /// `total` is the number of seats of the whole server.
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
            reluctant: AtomicUsize::new(0),
            maintaining: AtomicBool::new(false),
            maintained: Notify::new(),
            status_writes: Mutex::default(),
        }
    }

    /// What is counted, for the metrics.
    pub fn collector(self: &Arc<Self>) -> Result<metrics::FairnessCollector, prometheus::Error> {
        metrics::FairnessCollector::new(self.clone())
    }

    /// Begins new turns, and follows the objects that configure this.
    pub fn spawn(self: &Arc<Self>, tasks: &TaskGroup) {
        let _ = self.tasks.set(tasks.clone());
        self.begin_turns(tasks);
        self.follow(tasks);
    }

    fn begin_turns(self: &Arc<Self>, tasks: &TaskGroup) {
        let (fairness, stopping) = (self.clone(), tasks.stopping());
        tasks.spawn(async move {
            tokio::select! {
                () = stopping => {}
                () = fairness.keep_turns() => {}
            }
            // Whoever still waits is served while the server drains.
            fairness.turns.end();
            fairness.serve(usize::MAX);
        });
    }

    async fn keep_turns(&self) {
        loop {
            self.turns.ending().await;
            loop {
                // Sockets are looked at before this goes on: that is what ends a turn.
                tokio::task::yield_now().await;
                self.turns.begin();
                self.serve(self.turns.size());
                if !self.turns.is_over() {
                    break;
                }
            }
        }
    }

    /// Serves those who wait, level by level, each about the same number.
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

    /// Waits for a seat, until `deadline` at most. The classification is known in any case.
    pub async fn enter(
        self: &Arc<Self>,
        context: &Context,
        now: Instant,
        deadline: Instant,
    ) -> (Option<Classification>, Result<Seat, Refused>) {
        let plan = self.plan.load();
        let Some(schema) = plan.schema_of(context) else {
            return (None, Err(Refused { retry_after: 1 }));
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
            Entry::Refused(refusal, retry_after) => {
                if refusal == Refusal::QueueFull {
                    self.hesitate().await;
                }
                Err(Refused { retry_after })
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
    ) -> Result<Seat, Refused> {
        self.see_to_releases(&level);
        let mut pending = Pending { fairness: self.clone(), level: level.clone(), id, ready: Some(ready) };
        let Some(ready) = pending.ready.as_mut() else { return Err(Refused { retry_after: 1 }) };
        if let Ok(Ok(key)) = tokio::time::timeout_at(deadline.into(), ready).await {
            pending.ready = None;
            return Ok(Seat { fairness: self.clone(), level, key });
        }
        match pending.resolve() {
            Outcome::Seated(key) => Ok(Seat { fairness: self.clone(), level, key }),
            Outcome::Gone(retry_after) => Err(Refused { retry_after }),
        }
    }

    /// Counts a watch until it ends.
    pub fn watched(&self, context: &Context) -> Option<Watched> {
        self.watches.register(&context.info, context.query.text("fieldSelector"))
    }

    async fn hesitate(&self) {
        if self.reluctant.fetch_add(1, Ordering::Relaxed) < MAX_RELUCTANT {
            let _counted = Counted(&self.reluctant);
            tokio::time::sleep(Duration::from_millis(rand::random_range(RELUCTANCE))).await;
        } else {
            self.reluctant.fetch_sub(1, Ordering::Relaxed);
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

    /// Seats that stay taken after their request become free without anybody noticing, unless somebody waits.
    fn see_to_releases(self: &Arc<Self>, level: &Arc<Level>) {
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

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One who waits. Whoever stops waiting leaves no trace, also if a seat was given at that very moment.
struct Pending {
    fairness: Arc<Fairness>,
    level: Arc<Level>,
    id: u64,
    ready: Option<oneshot::Receiver<usize>>,
}

enum Outcome {
    Seated(usize),
    Gone(u64),
}

impl Pending {
    fn resolve(&mut self) -> Outcome {
        let Some(mut ready) = self.ready.take() else { return Outcome::Gone(1) };
        match self.level.give_up(Instant::now(), &self.fairness.turns, self.id) {
            Some(retry_after) => Outcome::Gone(retry_after),
            None => ready.try_recv().map_or(Outcome::Gone(1), Outcome::Seated),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Outcome::Seated(key) = self.resolve() {
            self.level.leave(Instant::now(), &self.fairness.turns, key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.level.leave(Instant::now(), &self.fairness.turns, self.key) {
            self.fairness.see_to_releases(&self.level);
        }
    }
}

#[cfg(test)]
mod tests;
