//! `/debug/api_priority_and_fairness/dump_*`: current levels, queues and requests as aligned text.

use super::Fairness;
use super::level::{RequestDescription, State};
use super::queue_set::Running;
use super::work::{Work, printed};
use base::clock::Clock;
use std::time::Instant;

/// Available dumps.
const DUMPS: [&str; 3] = ["dump_priority_levels", "dump_queues", "dump_requests"];

impl Fairness {
    /// Text of a dump; `None` for an unknown name.
    pub fn dump(&self, what: &str, details: bool, clock: &Clock) -> Option<String> {
        let known = DUMPS.iter().position(|name| *name == what)?;
        let levels: Vec<_> = self.ledger.lock().levels.values().cloned().collect();
        let mut table = Table::new(match known {
            0 => LEVEL_COLUMNS,
            1 => QUEUE_COLUMNS,
            _ => REQUEST_COLUMNS,
        });
        if known == 2 && details {
            table.extend(DETAIL_COLUMNS);
        }
        let times = Times { now: Instant::now(), wall: clock.now() };
        for level in levels {
            let state = level.state();
            match known {
                0 => table.rows.push(level_row(&level.name, &state)),
                1 => table.rows.extend(queue_rows(&level.name, &state)),
                _ => table.rows.extend(request_rows(&level.name, &state, details, times)),
            }
        }
        Some(table.print())
    }
}

const LEVEL_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "ActiveQueues",
    "IsIdle",
    "IsQuiescing",
    "WaitingRequests",
    "ExecutingRequests",
    "DispatchedRequests",
    "RejectedRequests",
    "TimedoutRequests",
    "CancelledRequests",
];
const QUEUE_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "Index",
    "PendingRequests",
    "ExecutingRequests",
    "SeatsInUse",
    "NextDispatchR",
    "InitialSeatsSum",
    "MaxSeatsSum",
    "TotalWorkSum",
];
const REQUEST_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "FlowSchemaName",
    "QueueIndex",
    "RequestIndexInQueue",
    // Spelled as in Kubernetes.
    "FlowDistingsher",
    "ArriveTime",
    "InitialSeats",
    "FinalSeats",
    "AdditionalLatency",
    "StartTime",
];
const DETAIL_COLUMNS: &[&str] =
    &["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];

type Row = Vec<String>;

fn level_row(name: &str, state: &State) -> Row {
    let totals = &state.set.totals;
    let active = state.set.queues.iter().filter(|queue| !queue.waiting.is_empty()).count();
    vec![
        name.to_owned(),
        active.to_string(),
        state.is_idle().to_string(),
        state.quiescing.to_string(),
        totals.waiting.to_string(),
        totals.executing.to_string(),
        totals.dispatched.to_string(),
        totals.rejected.to_string(),
        // Kubernetes never counts these.
        "0".to_owned(),
        totals.cancelled.to_string(),
    ]
}

fn queue_rows(name: &str, state: &State) -> impl Iterator<Item = Row> {
    state.set.queues.iter().enumerate().map(move |(index, queue)| {
        let initial: usize = queue.waiting.iter().map(|waiting| waiting.work.initial_seats).sum();
        vec![
            name.to_owned(),
            index.to_string(),
            queue.waiting.len().to_string(),
            queue.executing.to_string(),
            queue.seats_in_use.to_string(),
            printed(queue.next_dispatch),
            initial.to_string(),
            queue.seats_waiting.to_string(),
            printed(queue.work_waiting),
        ]
    })
}

/// Current time on both clocks.
#[derive(Clone, Copy)]
struct Times {
    now: Instant,
    wall: jiff::Timestamp,
}

impl Times {
    fn text(&self, at: Instant) -> String {
        let ago = self.now.saturating_duration_since(at);
        let ago = jiff::SignedDuration::try_from(ago).unwrap_or_default();
        self.wall.saturating_sub(ago).map_or_else(|_| String::new(), |time| time.to_string())
    }
}

fn request_rows(name: &str, state: &State, details: bool, times: Times) -> Vec<Row> {
    let mut rows = Vec::new();
    let schema = |at: usize| state.schemas.get(at).map_or("", |stats| &*stats.name);
    let mut add =
        |at: usize, place: (i64, i64), about: &RequestDescription, work: &Work, arrived, started: String| {
            let mut row = vec![
                name.to_owned(),
                schema(at).to_owned(),
                place.0.to_string(),
                place.1.to_string(),
                about.flow().to_owned(),
                times.text(arrived),
                work.initial_seats.to_string(),
                work.final_seats.to_string(),
                format!("{:?}", work.additional_latency).replace("0ns", "0s"),
                started,
            ];
            if details {
                row.extend(describe(about));
            }
            rows.push(row);
        };
    for (index, queue) in state.set.queues.iter().enumerate() {
        for (place, waiting) in queue.waiting.iter().enumerate() {
            let never = "0001-01-01T00:00:00Z".to_owned();
            let place = (index as i64, place as i64);
            add(waiting.who.schema, place, &waiting.who.about, &waiting.work, waiting.arrived, never);
        }
    }
    for seated in state.seated.iter().flatten() {
        let Running { work, started, queue } = &seated.running;
        let index = queue.map_or(-1, |at| at as i64);
        add(seated.schema, (index, -1), &seated.about, work, seated.arrived, times.text(*started));
    }
    rows
}

fn describe(about: &RequestDescription) -> Row {
    let info = &about.info;
    let version = machinery::gvk::api_version(&info.group, &info.version);
    [
        &*about.user.name,
        info.verb.as_str(),
        &*about.path,
        &*info.namespace,
        &*info.name,
        &*version,
        &*info.resource,
        &*info.subresource,
    ]
    .map(str::to_owned)
    .into()
}

/// Aligned cells, each terminated by a comma.
struct Table {
    rows: Vec<Row>,
}

impl Table {
    fn new(columns: &[&str]) -> Self {
        let mut table = Self { rows: vec![Vec::new()] };
        table.extend(columns);
        table
    }

    fn extend(&mut self, columns: &[&str]) {
        if let Some(head) = self.rows.first_mut() {
            head.extend(columns.iter().map(|column| (*column).to_owned()));
        }
    }

    fn print(self) -> String {
        const MIN_WIDTH: usize = 8;
        let columns = self.rows.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..columns)
            .map(|at| {
                let widest = self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
                (widest.max().unwrap_or(0) + 2).max(MIN_WIDTH)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            for (at, cell) in row.iter().enumerate() {
                // User names may hold any character.
                let cell: String = cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
                text.push_str(&cell);
                if at + 1 < row.len() {
                    let padding = widths[at].saturating_sub(cell.chars().count() + 1);
                    text.push(',');
                    text.extend(std::iter::repeat_n(' ', padding));
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_cells_are_aligned() {
        let mut table = Table::new(&["Name", "A", "Last"]);
        table.rows.push(["a-long-name", "1", "x"].map(str::to_owned).into());
        assert_eq!(table.print(), "Name,        A,      Last\na-long-name, 1,      x\n");
    }
}
