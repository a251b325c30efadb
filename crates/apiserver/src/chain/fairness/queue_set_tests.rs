use super::*;
use std::collections::HashMap;
use std::time::Duration;

/// A simulation with known execution times: clients send the next request as soon as one is answered.
struct World {
    set: QueueSet<usize>,
    turns: Turns,
    now: Instant,
    /// Executing requests: end time and client.
    running: Vec<(Instant, usize, Running)>,
    clients: Vec<FlowClient>,
    /// Seat-time of each client.
    served: HashMap<usize, Duration>,
    rejected: HashMap<usize, usize>,
    /// Dispatches that ended at a request of this client, for lack of seats.
    blocked: HashMap<usize, usize>,
}

#[derive(Clone, Copy)]
struct FlowClient {
    flow: u64,
    work: Work,
    takes: Duration,
    /// Concurrent requests of the client.
    parallel: usize,
}

impl World {
    fn new(discipline: Discipline, limit: usize, clients: Vec<FlowClient>) -> Self {
        let now = Instant::now();
        Self {
            set: QueueSet::new(discipline, limit, now),
            turns: Turns::new(1),
            now,
            running: Vec::new(),
            clients,
            served: HashMap::new(),
            rejected: HashMap::new(),
            blocked: HashMap::new(),
        }
    }

    fn request(&mut self, client: usize) {
        let FlowClient { flow, work, takes, .. } = self.clients[client];
        match self.set.start(self.now, flow, work, &self.turns, || client) {
            Start::Run(running) => self.running.push((self.now + takes, client, running)),
            Start::Wait { .. } => {}
            Start::Reject(_) => *self.rejected.entry(client).or_default() += 1,
        }
        self.check();
    }

    fn dispatch(&mut self) {
        let (now, clients, running) = (self.now, &self.clients, &mut self.running);
        let blocked = self.set.dispatch(now, &self.turns, usize::MAX, |waiting, run| {
            running.push((now + clients[waiting.who].takes, waiting.who, run));
            true
        });
        if let Some(waiting) = blocked {
            *self.blocked.entry(waiting.who).or_default() += 1;
        }
        self.check();
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        for client in 0..self.clients.len() {
            for _ in 0..self.clients[client].parallel {
                self.request(client);
            }
        }
        while self.now < end {
            let done = self.running.iter().map(|(when, _, _)| *when).min();
            let next = [done, self.set.next_release()].into_iter().flatten().min().unwrap_or(end);
            self.now = next.min(end);
            let (ended, left): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.running).into_iter().partition(|(when, _, _)| *when <= self.now);
            self.running = left;
            for (_, client, running) in ended {
                let seats = u32::try_from(running.work.initial_seats).expect("few");
                *self.served.entry(client).or_default() += (self.now - running.started) * seats;
                self.set.finish(self.now, running);
                // The client's next request arrives before another one is served.
                self.request(client);
                self.dispatch();
            }
            self.dispatch();
        }
    }

    /// Totals add up, and no request waits while seats are free.
    fn check(&self) {
        let (set, totals) = (&self.set, self.set.totals);
        let sum = |of: fn(&Queue<usize>) -> usize| set.queues.iter().map(of).sum::<usize>();
        assert_eq!(totals.waiting, sum(|queue| queue.waiting.len()));
        assert_eq!(totals.seats_waiting, sum(|queue| queue.seats_waiting));
        assert_eq!(set.active, sum(|queue| usize::from(queue.is_active())));
        if !set.queues.is_empty() {
            assert_eq!(totals.seats_in_use, sum(|queue| queue.seats_in_use));
            assert_eq!(totals.executing, sum(|queue| queue.executing));
        }
        let widest = self.clients.iter().map(|client| client.work.max_seats()).max().unwrap_or(0);
        assert!(totals.seats_in_use <= set.limit.max(widest) || set.discipline == Discipline::Exempt);
    }

    fn shares(&self) -> Vec<f64> {
        let total: f64 = self.served.values().map(Duration::as_secs_f64).sum();
        let of = |client| self.served.get(&client).map_or(0.0, Duration::as_secs_f64) / total;
        (0..self.clients.len()).map(of).collect()
    }
}

fn queuing(queues: usize, hand: usize, length: usize) -> Discipline {
    Discipline::Queue { dealer: Dealer::new(queues, hand).expect("possible"), queues, length }
}

fn client(flow: u64, parallel: usize, millis: u64) -> FlowClient {
    FlowClient { flow, work: Work::ONE_SEAT, takes: Duration::from_millis(millis), parallel }
}

/// One queue per flow; a flow is its queue's number.
fn one_each(queues: usize) -> Discipline {
    queuing(queues, 1, 1000)
}

#[test]
fn flows_with_unequal_load_get_equal_shares() {
    // Name, limit, clients, shares.
    let cases: [(&str, usize, Vec<FlowClient>, &[f64]); 5] = [
        ("a flood and a modest one", 4, vec![client(0, 500, 10), client(1, 2, 10)], &[0.5, 0.5]),
        ("who wants less gets what it wants", 8, vec![client(0, 100, 10), client(1, 2, 10)], &[0.75, 0.25]),
        ("long requests are no advantage", 4, vec![client(0, 50, 100), client(1, 50, 1)], &[0.5, 0.5]),
        (
            "three flows",
            6,
            vec![client(0, 100, 5), client(1, 100, 10), client(2, 100, 20)],
            &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0],
        ),
        (
            "wide requests count as wide",
            10,
            vec![FlowClient { work: Work::seats(5), ..client(0, 50, 10) }, client(1, 50, 10)],
            &[0.5, 0.5],
        ),
    ];
    for (name, limit, clients, want) in cases {
        let mut world = World::new(one_each(clients.len()), limit, clients);
        world.run_for(Duration::from_secs(30));
        for (share, want) in world.shares().iter().zip(want) {
            assert!((share - want).abs() < 0.05, "{name}: {:?}", world.shares());
        }
    }
}

#[test]
fn new_flow_is_served_before_waiting_flood() {
    let mut world = World::new(one_each(2), 2, vec![client(0, 100, 10), client(1, 0, 10)]);
    world.run_for(Duration::from_millis(500));
    world.request(1);
    let order = std::cell::RefCell::new(Vec::new());
    let (_, _, running) = world.running.remove(0);
    world.set.finish(world.now, running);
    world.set.dispatch(world.now, &world.turns, usize::MAX, |waiting, _| {
        order.borrow_mut().push(waiting.who);
        true
    });
    assert_eq!(order.into_inner(), [1]);
}

#[test]
fn idle_flow_accumulates_no_credit() {
    let mut world = World::new(one_each(2), 2, vec![client(0, 10, 10), client(1, 0, 10)]);
    world.run_for(Duration::from_secs(60));
    world.clients[1].parallel = 10;
    world.clients[0].parallel = 0;
    world.served.clear();
    world.run_for(Duration::from_secs(2));
    let shares = world.shares();
    assert!((shares[0] - 0.5).abs() < 0.05, "{shares:?}");
}

#[test]
fn full_queues_reject_requests() {
    let mut world = World::new(queuing(8, 2, 3), 1, vec![client(77, 1, 1000)]);
    for _ in 0..20 {
        world.request(0);
    }
    assert_eq!((world.set.totals.executing, world.set.totals.waiting), (1, 6));
    assert_eq!(world.rejected[&0], 13);

    let mut world = World::new(Discipline::Reject, 3, vec![client(0, 1, 1000)]);
    (0..5).for_each(|_| world.request(0));
    assert_eq!((world.running.len(), world.rejected[&0]), (3, 2));

    let mut world = World::new(Discipline::Exempt, 0, vec![client(0, 1, 1000)]);
    (0..5).for_each(|_| world.request(0));
    assert_eq!(world.running.len(), 5);

    let mut world = World::new(one_each(1), 0, vec![client(0, 1, 1000)]);
    world.request(0);
    assert_eq!((world.running.len(), world.set.totals.waiting), (0, 1), "no seats at all");
}

#[test]
fn request_wider_than_level_runs_alone() {
    let wide = FlowClient { work: Work::seats(9), ..client(0, 1, 10) };
    let mut world = World::new(one_each(2), 4, vec![wide, client(1, 3, 10)]);
    world.run_for(Duration::from_secs(5));
    assert!(world.shares()[0] > 0.2, "{:?}", world.shares());
    assert!(world.blocked[&0] > 0, "{:?}", world.blocked);
}

#[test]
fn write_holds_seats_for_additional_latency() {
    let work = Work { initial_seats: 1, final_seats: 4, additional_latency: Duration::from_millis(50) };
    let mut world = World::new(one_each(1), 4, vec![FlowClient { work, ..client(0, 2, 10) }]);
    (0..2).for_each(|_| world.request(0));
    assert_eq!((world.set.totals.seats_in_use, world.set.totals.waiting), (4, 1));
    world.now += Duration::from_millis(10);
    let (_, _, running) = world.running.remove(0);
    world.set.finish(world.now, running);
    world.dispatch();
    assert_eq!((world.set.totals.executing, world.set.totals.seats_in_use), (0, 4));
    assert_eq!(world.set.next_release(), Some(world.now + Duration::from_millis(50)));
    world.now += Duration::from_millis(49);
    world.dispatch();
    assert_eq!(world.set.totals.executing, 0);
    world.now += Duration::from_millis(1);
    world.dispatch();
    assert_eq!((world.set.totals.executing, world.set.totals.seats_in_use), (1, 4));
}

#[test]
fn cancelled_requests_leave_queue_set_idle() {
    let mut world = World::new(queuing(4, 2, 10), 1, vec![client(1, 1, 10), client(2, 1, 10)]);
    world.request(0);
    let mut ids = Vec::new();
    for round in 0..6 {
        match world.set.start(world.now, round % 2, Work::ONE_SEAT, &world.turns, || 1) {
            Start::Wait { id, .. } => ids.push(id),
            other => panic!("{other:?}"),
        }
    }
    for id in ids {
        assert!(world.set.cancel(world.now, id).is_some());
        assert!(world.set.cancel(world.now, id).is_none());
        world.check();
    }
    let (_, _, running) = world.running.remove(0);
    world.set.finish(world.now, running);
    assert!(world.set.is_idle());
    assert_eq!(world.set.totals.cancelled, 6);

    // The same for a request that was cancelled before its dispatch.
    world.request(0);
    assert!(matches!(world.set.start(world.now, 0, Work::ONE_SEAT, &world.turns, || 1), Start::Wait { .. }));
    let (_, _, running) = world.running.remove(0);
    world.set.finish(world.now, running);
    world.set.dispatch(world.now, &world.turns, usize::MAX, |_, _| false);
    assert!(world.set.is_idle());
    assert_eq!(world.set.totals.seats_in_use, 0);
}

#[test]
fn surplus_queues_are_removed_when_empty() {
    let clients = (0..8).map(|flow| client(flow, 3, 10)).collect();
    let mut world = World::new(one_each(8), 2, clients);
    world.run_for(Duration::from_millis(25));
    world.set.configure(one_each(2), 2, world.now);
    assert!(world.set.queues.len() > 2);
    world.clients.iter_mut().for_each(|client| (client.flow, client.parallel) = (client.flow % 2, 0));
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.set.queues.len(), 2);
    assert_eq!(world.set.totals.waiting + world.set.totals.executing, 24);
    world.set.configure(Discipline::Reject, 2, world.now);
    world.clients.clear();
    while let Some((_, _, running)) = world.running.pop() {
        world.set.finish(world.now, running);
        let more = &mut world.running;
        world.set.dispatch(world.now, &world.turns, usize::MAX, |_, run| {
            more.push((world.now, 0, run));
            true
        });
    }
    assert!(world.set.queues.is_empty() && world.set.is_idle());
}

#[tokio::test]
async fn short_request_flood_waiting_for_turns_yields_to_others() {
    let turns = Turns::new(1);
    // Turns are enforced from here on.
    assert!(futures_util::poll!(Box::pin(turns.ending())).is_pending());
    let mut now = Instant::now();
    let mut set: QueueSet<u64> = QueueSet::new(queuing(128, 6, 50), 49, now);
    let (flood, other) = (7, 1_000_003);
    let (mut served, mut flooded) = (0, 0);
    for turn in 0..2000 {
        // Each answered request of the flood is followed by the next immediately. None overlaps another, yet the
        // flood gets only its starts of each turn, and one more for each of its queues.
        let mut started = 0;
        while let Start::Run(running) = set.start(now, flood, Work::ONE_SEAT, &turns, || flood) {
            set.finish(now, running);
            started += 1;
        }
        assert!(started <= turns.size() + 6, "{started} requests of the flood in one turn");
        // A flow with few requests is served immediately, whatever else waits.
        if turn % 20 == 10 {
            match set.start(now, other, Work::ONE_SEAT, &turns, || other) {
                Start::Run(running) => set.finish(now, running),
                start => panic!("turn {turn}: {start:?}"),
            }
            served += 1;
            let again = set.start(now, other, Work::ONE_SEAT, &turns, || other);
            assert!(matches!(again, Start::Run(_) | Start::Wait { .. }));
            if let Start::Run(running) = again {
                set.finish(now, running);
            }
        }
        turns.begin();
        let mut running = Vec::new();
        set.dispatch(now, &turns, usize::MAX, |waiting, run| {
            flooded += usize::from(waiting.who == flood);
            running.push(run);
            true
        });
        assert!(running.len() <= turns.size());
        for run in running {
            now += Duration::from_micros(50);
            set.finish(now, run);
        }
    }
    assert!(flooded > 1000, "the flood is served, too: {flooded}");
    assert_eq!(served, 100);
}
