//! Waits with an end that say what they last saw.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Asks `observe` until `accept` likes what it sees, and returns that; panics with the last observation after
/// `limit`.
pub async fn eventually<T: Debug>(
    what: &str,
    limit: Duration,
    mut observe: impl AsyncFnMut() -> T,
    mut accept: impl FnMut(&T) -> bool,
) -> T {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let seen = observe().await;
        if accept(&seen) {
            return seen;
        }
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}; last seen: {seen:?}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}
