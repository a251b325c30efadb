//! Estimates the cost of a request: lists by the bytes they process, writes by their watchers.

use super::watches::Watches;
use super::work::{Work, seat_time};
use crate::context::Context;
use crate::request_info::Verb;
use std::time::Duration;

const BYTES_PER_SEAT: u64 = 100_000;
/// Memory bound of a list that is streamed from the cache.
const STREAMED_BYTES: u64 = 1_000_000;
const MAX_LIST_SEATS: usize = 100;
const MAX_WRITE_SEATS: usize = 10;
const WATCHES_PER_SEAT: usize = 10;
/// Cost of delivering one event.
const EVENT_LATENCY: Duration = Duration::from_millis(5);

/// Work of a request and, for writes, the number of affected watches. `max_seats` is the level's; zero: no limit.
pub fn estimate(context: &Context, watches: &Watches, max_seats: usize) -> (Work, Option<usize>) {
    let info = &context.info;
    match info.verb {
        _ if !info.is_resource => (Work::ONE_SEAT, None),
        Verb::List | Verb::Watch => (list(context, bounded(max_seats, MAX_LIST_SEATS)), None),
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => {
            if (info.resource.as_str(), info.subresource.as_str()) == ("serviceaccounts", "token") {
                return (Work::ONE_SEAT, None);
            }
            let interested = watches.affected_by(info);
            (write(interested, bounded(max_seats, MAX_WRITE_SEATS)), Some(interested))
        }
        _ => (Work::ONE_SEAT, None),
    }
}

fn bounded(max_seats: usize, most: usize) -> usize {
    if max_seats == 0 { most } else { max_seats.min(most) }
}

fn list(context: &Context, max_seats: usize) -> Work {
    let (info, query) = (&context.info, &context.query);
    let version = query.text("resourceVersion");
    if info.verb == Verb::Watch
        && query.flag("sendInitialEvents") != Some(true)
        && !matches!(version, "" | "0")
    {
        return Work::ONE_SEAT;
    }
    let Some(served) = context.catalogue.served(&info.group, &info.version, &info.resource) else {
        return Work::ONE_SEAT;
    };
    let size = served.storage.cache.size();
    let limit =
        query.integer("limit").ok().flatten().and_then(|limit| u64::try_from(limit).ok()).unwrap_or(0);
    let (objects, bytes) = (size.objects as u64, size.bytes as u64);
    let limited = if limit > 0 { objects.min(limit) } else { objects };
    let matching = query.text("resourceVersionMatch");
    let exact = matching == "Exact"
        || matching.is_empty()
            && (!query.text("continue").is_empty() || limit > 0 && !matches!(version, "" | "0"));
    let from_cache = info.verb == Verb::Watch || !exact;
    let narrowed = !query.text("fieldSelector").is_empty() || !query.text("labelSelector").is_empty();
    let loaded = match () {
        () if !info.name.is_empty() => 1,
        () if !from_cache && narrowed => limited.max(objects / 2),
        () => limited,
    };
    let mut bytes = loaded * bytes.checked_div(objects).unwrap_or(0);
    if from_cache {
        bytes = bytes.min(STREAMED_BYTES);
    }
    let seats = usize::try_from(bytes.div_ceil(BYTES_PER_SEAT)).unwrap_or(usize::MAX);
    Work::seats(seats.clamp(1, max_seats.max(1)))
}

fn write(watches: usize, max_seats: usize) -> Work {
    if watches < WATCHES_PER_SEAT {
        return Work::ONE_SEAT;
    }
    let seats = watches.div_ceil(WATCHES_PER_SEAT);
    let work = Work { initial_seats: 1, final_seats: seats, additional_latency: EVENT_LATENCY };
    debug_assert_eq!(seat_time(seats, EVENT_LATENCY), work.total() - Work::ONE_SEAT.total());
    work.narrowed(max_seats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_cost_grows_with_watchers() {
        for (watches, max, seats, millis) in
            [(0, 10, 0, 0), (9, 10, 0, 0), (10, 10, 1, 5), (95, 10, 10, 5), (400, 10, 10, 20)]
        {
            let work = write(watches, max);
            assert_eq!(
                (work.initial_seats, work.final_seats, work.additional_latency),
                (1, seats, Duration::from_millis(millis)),
                "{watches}"
            );
        }
    }
}
