//! Fair queuing for one priority level: selects the next waiting request.
//!
//! Every queue has a virtual start time: its progress if all non-empty queues had been served evenly. The next
//! request is the one with the earliest virtual finish time. Pure: time is a parameter and nothing waits here; `T`
//! identifies a waiting request.

use super::dealer::{Dealer, MAX_HAND};
use super::turns::Turns;
use super::work::{ESTIMATED_SERVICE, SeatTime, Work, seat_time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

/// Handling of requests beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// No limit.
    Exempt,
    Reject,
    Queue {
        dealer: Dealer,
        queues: usize,
        length: usize,
    },
}

/// A waiting request.
#[derive(Debug)]
pub struct Waiting<T> {
    pub id: u64,
    pub work: Work,
    pub arrived: Instant,
    arrived_at: SeatTime,
    pub who: T,
}

#[derive(Debug)]
pub struct Queue<T> {
    pub waiting: VecDeque<Waiting<T>>,
    pub executing: usize,
    pub seats_in_use: usize,
    pub seats_waiting: usize,
    /// Work of the waiting requests.
    pub work_waiting: SeatTime,
    /// Virtual start time of its next request.
    pub next_dispatch: SeatTime,
    /// Turn in which one of its requests started last.
    served_in: u64,
}

impl<T> Queue<T> {
    fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            executing: 0,
            seats_in_use: 0,
            seats_waiting: 0,
            work_waiting: 0,
            next_dispatch: 0,
            served_in: 0,
        }
    }

    fn is_active(&self) -> bool {
        self.executing > 0 || !self.waiting.is_empty()
    }

    /// No virtual start precedes the arrival: an idle queue accumulates no credit.
    fn bound(&mut self) {
        if let Some(head) = self.waiting.front() {
            self.next_dispatch = self.next_dispatch.max(head.arrived_at);
        }
    }
}

/// An executing request.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    pub work: Work,
    pub started: Instant,
    pub queue: Option<usize>,
}

#[derive(Debug)]
pub enum Start {
    Run(Running),
    /// Queued under this number, in a queue of this length.
    Wait {
        id: u64,
        length: usize,
    },
    Reject(RejectReason),
}

/// Rejection reason; the names are those of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
}

/// Totals over all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub waiting: usize,
    pub executing: usize,
    pub seats_in_use: usize,
    pub seats_waiting: usize,
    pub dispatched: u64,
    pub rejected: u64,
    pub cancelled: u64,
}

#[derive(Debug)]
pub struct QueueSet<T> {
    discipline: Discipline,
    limit: usize,
    /// Exceeds the configured number until surplus queues are empty.
    pub queues: Vec<Queue<T>>,
    pub totals: Totals,
    active: usize,
    /// Virtual time.
    pub progress: SeatTime,
    since: Instant,
    /// Queue that was served last.
    robin: usize,
    enqueued: usize,
    next_id: u64,
    /// Seats that stay taken after their request: release time, number, queue.
    lingering: BinaryHeap<Reverse<(Instant, usize, Option<usize>)>>,
}

impl<T> QueueSet<T> {
    pub fn new(discipline: Discipline, limit: usize, now: Instant) -> Self {
        let mut set = Self {
            discipline,
            limit,
            queues: Vec::new(),
            totals: Totals::default(),
            active: 0,
            progress: 0,
            since: now,
            robin: 0,
            enqueued: 0,
            next_id: 0,
            lingering: BinaryHeap::new(),
        };
        set.fit_queues();
        set
    }

    pub fn is_idle(&self) -> bool {
        self.totals.waiting == 0 && self.totals.executing == 0
    }

    /// Applies a new configuration; waiting requests stay in their queues.
    pub fn configure(&mut self, discipline: Discipline, limit: usize, now: Instant) {
        self.sync(now);
        self.discipline = discipline;
        self.limit = limit;
        self.fit_queues();
    }

    fn wanted_queues(&self) -> usize {
        match self.discipline {
            Discipline::Queue { queues, .. } => queues,
            Discipline::Exempt | Discipline::Reject => 0,
        }
    }

    /// Adds queues immediately, removes surplus ones once they are empty.
    fn fit_queues(&mut self) {
        let wanted = self.wanted_queues();
        while self.queues.len() < wanted {
            self.queues.push(Queue::new());
        }
        while self.queues.len() > wanted
            && self.queues.last().is_some_and(|queue| !queue.is_active() && queue.seats_in_use == 0)
        {
            self.queues.pop();
        }
    }

    /// Executes, queues or rejects a new request.
    pub fn start(
        &mut self,
        now: Instant,
        flow: u64,
        work: Work,
        turns: &Turns,
        who: impl FnOnce() -> T,
    ) -> Start {
        self.sync(now);
        let Discipline::Queue { dealer, length: longest, .. } = self.discipline else {
            if !self.has_seats_for(work.max_seats()) {
                self.totals.rejected += 1;
                return Start::Reject(RejectReason::ConcurrencyLimit);
            }
            return Start::Run(self.run(now, work, None));
        };
        let at = self.choose(dealer, flow);
        let (progress, queue) = (self.progress, &mut self.queues[at]);
        // Requests queue only while no seats are free, so a full queue implies that none are.
        if queue.waiting.len() >= longest {
            self.totals.rejected += 1;
            return Start::Reject(RejectReason::QueueFull);
        }
        let idle = !queue.is_active();
        if idle {
            queue.next_dispatch = progress;
        }
        let modest = idle && queue.served_in < turns.number();
        let room = self.totals.seats_in_use < self.limit && self.has_seats_for(work.max_seats());
        let in_turn = self.totals.waiting == 0 && turns.take();
        if room && (in_turn || modest && self.waits_for_turns_only()) {
            let queue = &mut self.queues[at];
            queue.served_in = turns.number();
            // Its virtual start is now, too.
            queue.next_dispatch = queue.next_dispatch.max(progress);
            self.robin = at;
            return Start::Run(self.run(now, work, Some(at)));
        }
        let queue = &mut self.queues[at];
        let id = self.next_id;
        self.next_id += 1;
        if !queue.is_active() {
            self.active += 1;
        }
        queue.waiting.push_back(Waiting { id, work, arrived: now, arrived_at: progress, who: who() });
        queue.work_waiting += work.total();
        queue.seats_waiting += work.max_seats();
        queue.bound();
        let length = queue.waiting.len();
        self.totals.waiting += 1;
        self.totals.seats_waiting += work.max_seats();
        Start::Wait { id, length }
    }

    /// Queue of the flow's hand with the least work; ties are broken round-robin.
    fn choose(&mut self, dealer: Dealer, flow: u64) -> usize {
        let mut cards = [0; MAX_HAND];
        let size = dealer.deal(flow, &mut cards);
        let offset = self.enqueued % size;
        self.enqueued = self.enqueued.wrapping_add(1);
        let hand = (0..size).map(|step| cards[(offset + step) % size]);
        hand.min_by_key(|card| self.queues[*card].work_waiting).unwrap_or(0)
    }

    fn has_seats_for(&self, seats: usize) -> bool {
        match self.discipline {
            Discipline::Exempt => true,
            // A request wider than the whole level runs alone on all seats.
            _ if seats > self.limit => self.totals.executing == 0 && self.totals.seats_in_use == 0,
            _ => self.totals.seats_in_use + seats <= self.limit,
        }
    }

    /// Takes the seats of a request that starts now.
    fn run(&mut self, now: Instant, work: Work, queue: Option<usize>) -> Running {
        let work = if queue.is_some() { work.narrowed(self.limit) } else { work };
        let seats = work.max_seats();
        self.totals.executing += 1;
        self.totals.dispatched += 1;
        self.totals.seats_in_use += seats;
        if let Some(queue) = queue.and_then(|at| self.queues.get_mut(at)) {
            if !queue.is_active() {
                self.active += 1;
            }
            queue.executing += 1;
            queue.seats_in_use += seats;
            queue.next_dispatch += work.total();
        }
        Running { work, started: now, queue }
    }

    /// Dispatches at most `most` requests while there are seats and starts in the turn. `started` receives each and
    /// returns false if it was cancelled. Returns the next request if it needs more seats than are free.
    pub fn dispatch(
        &mut self,
        now: Instant,
        turns: &Turns,
        most: usize,
        mut started: impl FnMut(Waiting<T>, Running) -> bool,
    ) -> Option<&Waiting<T>> {
        self.sync(now);
        for _ in 0..most {
            if self.totals.waiting == 0 || self.totals.seats_in_use >= self.limit {
                return None;
            }
            let at = self.next_queue()?;
            let seats = self.queues[at].waiting.front()?.work.max_seats();
            if !self.has_seats_for(seats) {
                return self.queues[at].waiting.front();
            }
            if !turns.take() {
                return None;
            }
            let head = self.queues[at].waiting.pop_front()?;
            self.forget_waiting(at, &head.work);
            self.robin = at;
            let running = self.run(now, head.work, Some(at));
            self.queues[at].bound();
            self.queues[at].served_in = turns.number();
            if !started(head, running) {
                self.finish(now, running);
            }
        }
        None
    }

    /// Reports whether only turns hold waiting requests back. Turns hold back only queues that started a request in
    /// this turn, or have one executing or waiting. A request that waits for seats blocks later ones, which must not
    /// take its seats.
    fn waits_for_turns_only(&self) -> bool {
        let head = self.next_queue().and_then(|at| self.queues[at].waiting.front());
        head.is_none_or(|head| self.has_seats_for(head.work.max_seats()))
    }

    /// Reports whether a request waits for its turn only.
    pub fn wants_turn(&self) -> bool {
        self.totals.waiting > 0 && self.totals.seats_in_use < self.limit
    }

    /// In round-robin order, the first queue whose head has the earliest virtual finish time.
    fn next_queue(&self) -> Option<usize> {
        let count = self.queues.len();
        let mut best: Option<(SeatTime, usize)> = None;
        for step in 1..=count {
            let at = (self.robin + step) % count;
            let queue = &self.queues[at];
            if let Some(head) = queue.waiting.front() {
                let finish = queue.next_dispatch + head.work.total();
                if best.is_none_or(|(earliest, _)| finish < earliest) {
                    best = Some((finish, at));
                }
            }
        }
        best.map(|(_, at)| at)
    }

    /// Cancels a waiting request; returns true if it was still waiting.
    fn forget_waiting(&mut self, at: usize, work: &Work) {
        let queue = &mut self.queues[at];
        queue.work_waiting -= work.total();
        queue.seats_waiting -= work.max_seats();
        self.totals.waiting -= 1;
        self.totals.seats_waiting -= work.max_seats();
        if !queue.is_active() {
            self.active -= 1;
        }
    }

    /// Removes a request from its queue, if it is queued.
    pub fn cancel(&mut self, now: Instant, id: u64) -> Option<Waiting<T>> {
        self.sync(now);
        let (at, place) = self.queues.iter().enumerate().find_map(|(at, queue)| {
            // Numbers ascend along a queue.
            queue.waiting.binary_search_by_key(&id, |waiting| waiting.id).ok().map(|place| (at, place))
        })?;
        let gone = self.queues[at].waiting.remove(place)?;
        self.forget_waiting(at, &gone.work);
        self.queues[at].bound();
        self.totals.rejected += 1;
        self.totals.cancelled += 1;
        self.fit_queues();
        Some(gone)
    }

    /// Ends a request and charges its queue for the actual execution time.
    pub fn finish(&mut self, now: Instant, running: Running) {
        self.sync(now);
        self.totals.executing -= 1;
        if let Some(queue) = running.queue.and_then(|at| self.queues.get_mut(at)) {
            let seats = running.work.initial_seats;
            let took = now.saturating_duration_since(running.started);
            queue.next_dispatch += seat_time(seats, took) - seat_time(seats, ESTIMATED_SERVICE);
            queue.executing -= 1;
            queue.bound();
            if !queue.is_active() {
                self.active -= 1;
            }
        }
        let seats = running.work.max_seats();
        if running.work.additional_latency.is_zero() {
            self.release(seats, running.queue);
        } else {
            self.lingering.push(Reverse((now + running.work.additional_latency, seats, running.queue)));
        }
    }

    fn release(&mut self, seats: usize, queue: Option<usize>) {
        self.totals.seats_in_use -= seats;
        if let Some(queue) = queue.and_then(|at| self.queues.get_mut(at)) {
            queue.seats_in_use -= seats;
        }
        if self.queues.len() > self.wanted_queues() {
            self.fit_queues();
        }
    }

    /// Next release of seats that stayed taken after their request.
    pub fn next_release(&self) -> Option<Instant> {
        self.lingering.peek().map(|Reverse((when, _, _))| *when)
    }

    /// Advances virtual time by the interval since the last call.
    fn sync(&mut self, now: Instant) {
        while let Some(Reverse((when, seats, queue))) = self.lingering.peek().copied()
            && when <= now
        {
            self.lingering.pop();
            self.advance(when);
            self.release(seats, queue);
        }
        self.advance(now);
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        self.since = self.since.max(now);
        if self.active > 0 {
            // Actual service divided evenly: all seats if requests wait for seats, fewer if they wait for their turn.
            // More would let early queues stay ahead of every later one.
            self.progress += seat_time(self.totals.seats_in_use, passed) / self.active as SeatTime;
        }
    }
}

#[cfg(test)]
#[path = "queue_set_tests.rs"]
mod tests;
