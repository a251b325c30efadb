//! Runtime state of one priority level: its queues behind a lock, waiting requests, and statistics of both.

use super::demand::Demand;
use super::dropped::Dropped;
use super::histogram::{Histogram, RatioHistogram};
use super::objects::Settings;
use super::queue_set::{QueueSet, RejectReason, Running, Start, Waiting};
use super::turns::Turns;
use super::work::Work;
use crate::request_info::{RequestInfo, Verb};
use crate::user::UserInfo;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const DURATION_BUCKETS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const LENGTH_BUCKETS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SEAT_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const WATCH_BUCKETS: &[f64] = &[0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0];
const UTILIZATION_BUCKETS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
const REQUESTS_BUCKETS: &[f64] = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
const DEMAND_BUCKETS: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];
/// Schemas with statistics of their own; further ones share an entry.
const MAX_SCHEMAS: usize = 1000;

/// Request description for the debug dumps.
#[derive(Clone, Debug)]
pub struct RequestDescription {
    pub user: Arc<UserInfo>,
    pub info: Arc<RequestInfo>,
    pub path: Arc<str>,
    pub distinguisher: Distinguisher,
}

/// Flow distinguisher of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinguisher {
    None,
    ByUser,
    ByNamespace,
}

impl RequestDescription {
    pub fn flow(&self) -> &str {
        match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::ByUser => &self.user.name,
            Distinguisher::ByNamespace => &self.info.namespace,
        }
    }
}

/// A request that arrives at a level.
pub struct Arrival {
    pub schema: usize,
    pub flow: u64,
    pub work: Work,
    pub about: RequestDescription,
    /// Watches affected by the write.
    pub watches: Option<usize>,
}

/// A waiting request.
pub struct Ticket {
    pub schema: usize,
    pub about: RequestDescription,
    ready: oneshot::Sender<usize>,
}

/// An executing request.
pub struct Seated {
    pub running: Running,
    pub schema: usize,
    pub about: RequestDescription,
    pub arrived: Instant,
}

/// Statistics of one schema's requests.
pub struct SchemaStats {
    pub name: Arc<str>,
    pub dispatched: u64,
    /// Rejections by reason: concurrency limit, full queue, timeout.
    pub rejected: [u64; 3],
    /// Dispatch attempts whose request needed more seats than were free.
    pub no_accommodation: u64,
    pub executing: usize,
    pub seats: usize,
    pub waiting: usize,
    pub seats_waiting: usize,
    pub waited: Histogram,
    pub waited_in_vain: Histogram,
    pub executed: Histogram,
    pub executed_watch: Histogram,
    pub queue_length: Histogram,
    pub estimated_seats: Histogram,
    pub watch_count: Histogram,
}

impl SchemaStats {
    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            dispatched: 0,
            rejected: [0; 3],
            no_accommodation: 0,
            executing: 0,
            seats: 0,
            waiting: 0,
            seats_waiting: 0,
            waited: Histogram::new(DURATION_BUCKETS),
            waited_in_vain: Histogram::new(DURATION_BUCKETS),
            executed: Histogram::new(DURATION_BUCKETS),
            executed_watch: Histogram::new(DURATION_BUCKETS),
            queue_length: Histogram::new(LENGTH_BUCKETS),
            estimated_seats: Histogram::new(SEAT_BUCKETS),
            watch_count: Histogram::new(WATCH_BUCKETS),
        }
    }
}

/// Nominal, minimum, maximum and current seats of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub nominal: usize,
    pub lower: usize,
    pub upper: usize,
    pub current: usize,
}

pub struct State {
    pub set: QueueSet<Ticket>,
    pub settings: Settings,
    pub limits: Limits,
    pub target: f64,
    pub demand: Demand,
    pub schemas: Vec<SchemaStats>,
    pub seated: Vec<Option<Seated>>,
    free: Vec<usize>,
    pub seat_utilization: RatioHistogram,
    pub waiting_requests: RatioHistogram,
    pub executing_requests: RatioHistogram,
    pub demand_ratio: RatioHistogram,
    /// True while a task waits for seats that stay taken after their request.
    release_awaited: bool,
    pub quiescing: bool,
    dropped: Dropped,
}

pub struct Level {
    pub name: Arc<str>,
    epoch: Instant,
    state: Mutex<State>,
}

/// Outcome of an arrival.
pub enum Entry {
    Seated(usize),
    Waiting(u64, oneshot::Receiver<usize>),
    Rejected(RejectReason, u64),
}

impl Level {
    pub fn new(name: Arc<str>, settings: Settings, now: Instant) -> Self {
        let state = State {
            set: QueueSet::new(settings.discipline, 0, now),
            settings,
            limits: Limits::default(),
            target: 0.0,
            demand: Demand::new(now),
            schemas: Vec::new(),
            seated: Vec::new(),
            free: Vec::new(),
            seat_utilization: RatioHistogram::new(UTILIZATION_BUCKETS, now),
            waiting_requests: RatioHistogram::new(REQUESTS_BUCKETS, now),
            executing_requests: RatioHistogram::new(REQUESTS_BUCKETS, now),
            demand_ratio: RatioHistogram::new(DEMAND_BUCKETS, now),
            release_awaited: false,
            quiescing: false,
            dropped: Dropped::default(),
        };
        Self { name, epoch: now, state: Mutex::new(state) }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Index of a schema's statistics.
    pub fn schema_slot(&self, name: &Arc<str>) -> usize {
        let schemas = &mut self.state().schemas;
        if let Some(at) = schemas.iter().position(|stats| stats.name == *name) {
            return at;
        }
        if schemas.len() < MAX_SCHEMAS {
            schemas.push(SchemaStats::new(name.clone()));
        } else if schemas.len() == MAX_SCHEMAS {
            schemas.push(SchemaStats::new("others".into()));
        }
        schemas.len() - 1
    }

    pub fn arrive(&self, now: Instant, turns: &Turns, arrival: Arrival) -> Entry {
        let Arrival { schema, flow, work, about, watches } = arrival;
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(stats) = state.schemas.get_mut(schema) {
            stats.estimated_seats.observe(work.max_seats() as f64);
            if let Some(watches) = watches {
                stats.watch_count.observe(watches as f64);
            }
        }
        let mut about = Some(about);
        let mut receiver = None;
        let start = state.set.start(now, flow, work, turns, || {
            let (ready, wait) = oneshot::channel();
            receiver = Some(wait);
            Ticket { schema, about: about.take().unwrap_or_else(unknown), ready }
        });
        match (start, receiver) {
            (Start::Run(running), _) => {
                let about = about.unwrap_or_else(unknown);
                let key = state.seat(Seated { running, schema, about, arrived: now });
                state.note(now);
                Entry::Seated(key)
            }
            (Start::Wait { id, length }, Some(receiver)) => {
                state.note_waiting(schema, &work, length);
                state.dispatch(now, turns, usize::MAX);
                Entry::Waiting(id, receiver)
            }
            (Start::Reject(refusal), _) => {
                if let Some(stats) = state.schemas.get_mut(schema) {
                    stats.rejected[refusal as usize] += 1;
                    stats.waited_in_vain.observe(0.0);
                }
                Entry::Rejected(refusal, state.dropped.refuse(self.second(now)))
            }
            (Start::Wait { .. }, None) => Entry::Rejected(RejectReason::QueueFull, 1),
        }
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_secs()
    }

    /// Removes a request that timed out or was cancelled. Returns its `Retry-After` if it was still waiting.
    pub fn give_up(&self, now: Instant, turns: &Turns, id: u64) -> Option<u64> {
        let mut state = self.state();
        let gone = state.set.cancel(now, id)?;
        let waited = now.saturating_duration_since(gone.arrived);
        state.forget_waiting(&gone);
        if let Some(stats) = state.schemas.get_mut(gone.who.schema) {
            stats.rejected[RejectReason::TimeOut as usize] += 1;
            stats.waited_in_vain.observe(waited.as_secs_f64());
        }
        let retry = state.dropped.refuse(self.second(now));
        state.dispatch(now, turns, usize::MAX);
        Some(retry)
    }

    /// Ends a request. Returns true if a request waits for seats that this or others still hold after their end.
    pub fn leave(&self, now: Instant, turns: &Turns, key: usize) -> bool {
        let mut state = self.state();
        state.unseat(now, key);
        state.dispatch(now, turns, usize::MAX);
        state.set.totals.waiting > 0 && state.set.next_release().is_some()
    }

    /// Dispatches at most `most` waiting requests.
    pub fn serve(&self, now: Instant, turns: &Turns, most: usize) {
        self.state().dispatch(now, turns, most);
    }

    /// Returns true if the caller has to wait for the release of seats that no request holds; true only once until
    /// [`Level::await_release`] returns `None`.
    pub fn needs_release(&self) -> bool {
        let mut state = self.state();
        let needed = state.set.totals.waiting > 0 && state.set.next_release().is_some();
        needed && !std::mem::replace(&mut state.release_awaited, true)
    }

    /// Dispatches requests and returns the time of the next release; `None` if no request waits for one.
    pub fn await_release(&self, now: Instant, turns: &Turns) -> Option<Instant> {
        let mut state = self.state();
        state.dispatch(now, turns, usize::MAX);
        let next = state.set.next_release().filter(|_| state.set.totals.waiting > 0);
        state.release_awaited = next.is_some();
        next
    }
}

fn unknown() -> RequestDescription {
    RequestDescription {
        user: Arc::default(),
        info: Arc::default(),
        path: Arc::from(""),
        distinguisher: Distinguisher::None,
    }
}

impl State {
    pub fn is_idle(&self) -> bool {
        self.set.is_idle()
    }

    /// Sets the seats of the level.
    pub fn set_limits(&mut self, now: Instant, limits: Limits, fallback: usize) {
        self.limits = limits;
        self.set.configure(self.settings.discipline, limits.current, now);
        let denominator = if limits.current > 0 { limits.current } else { fallback };
        self.seat_utilization.set_denominator(now, denominator);
        self.executing_requests.set_denominator(now, denominator);
        self.demand_ratio.set_denominator(now, denominator);
        let places = match self.settings.discipline {
            super::queue_set::Discipline::Queue { queues, length, .. } => queues * length,
            _ => 1,
        };
        self.waiting_requests.set_denominator(now, places);
    }

    fn seat(&mut self, seated: Seated) -> usize {
        if let Some(stats) = self.schemas.get_mut(seated.schema) {
            stats.dispatched += 1;
            stats.executing += 1;
            stats.seats += seated.running.work.max_seats();
            let waited = seated.running.started.saturating_duration_since(seated.arrived);
            stats.waited.observe(waited.as_secs_f64());
        }
        match self.free.pop() {
            Some(key) => {
                self.seated[key] = Some(seated);
                key
            }
            None => {
                self.seated.push(Some(seated));
                self.seated.len() - 1
            }
        }
    }

    fn unseat(&mut self, now: Instant, key: usize) {
        let Some(seated) = self.seated.get_mut(key).and_then(Option::take) else { return };
        self.free.push(key);
        self.set.finish(now, seated.running);
        if let Some(stats) = self.schemas.get_mut(seated.schema) {
            stats.executing -= 1;
            stats.seats -= seated.running.work.max_seats();
            let took: Duration = now.saturating_duration_since(seated.running.started);
            let watch = seated.about.info.verb == Verb::Watch;
            let histogram = if watch { &mut stats.executed_watch } else { &mut stats.executed };
            histogram.observe(took.as_secs_f64());
        }
        self.note(now);
    }

    fn note_waiting(&mut self, schema: usize, work: &Work, length: usize) {
        if let Some(stats) = self.schemas.get_mut(schema) {
            stats.waiting += 1;
            stats.seats_waiting += work.max_seats();
            stats.queue_length.observe(length as f64);
        }
    }

    fn forget_waiting(&mut self, waiting: &Waiting<Ticket>) {
        if let Some(stats) = self.schemas.get_mut(waiting.who.schema) {
            stats.waiting -= 1;
            stats.seats_waiting -= waiting.work.max_seats();
        }
    }

    /// Dispatches at most `most` waiting requests.
    fn dispatch(&mut self, now: Instant, turns: &Turns, most: usize) {
        if self.set.totals.waiting > 0 {
            let mut started = Vec::new();
            let blocked = self.set.dispatch(now, turns, most, |waiting, running| {
                let wanted = !waiting.who.ready.is_closed();
                started.push((waiting, wanted.then_some(running)));
                wanted
            });
            if let Some(stats) = blocked.and_then(|waiting| self.schemas.get_mut(waiting.who.schema)) {
                stats.no_accommodation += 1;
            }
            for (waiting, running) in started {
                self.forget_waiting(&waiting);
                let Some(running) = running else { continue };
                let Waiting { arrived, who: Ticket { schema, about, ready }, .. } = waiting;
                let key = self.seat(Seated { running, schema, about, arrived });
                if ready.send(key).is_err() {
                    self.unseat(now, key);
                }
            }
            self.note(now);
        }
    }

    fn note(&mut self, now: Instant) {
        let totals = &self.set.totals;
        let demand = totals.seats_in_use + totals.seats_waiting;
        self.demand.set(now, demand);
        self.demand_ratio.set(now, demand);
        self.seat_utilization.set(now, totals.seats_in_use);
        self.waiting_requests.set(now, totals.waiting);
        self.executing_requests.set(now, totals.executing);
    }
}
