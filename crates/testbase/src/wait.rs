//! Bounded waits that report the last observation.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use base::backoff::Backoff;

/// Calls `observe` until `accept` returns true, and returns that observation; panics with the last one after `limit`.
pub async fn eventually<T: Debug>(
    what: &str,
    limit: Duration,
    mut observe: impl AsyncFnMut() -> T,
    mut accept: impl FnMut(&T) -> bool,
) -> T {
    let begin = Instant::now();
    let mut poll = Backoff::new(Duration::from_millis(2), Duration::from_millis(200));
    loop {
        let seen = observe().await;
        if accept(&seen) {
            return seen;
        }
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}; last seen: {seen:?}");
        poll.wait().await;
    }
}
