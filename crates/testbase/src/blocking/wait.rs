//! Bounded waits.

use std::time::{Duration, Instant};

/// Long enough for a slow machine under load.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` returns `Ok`; panics with its last error after the time limit.
pub fn until<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    try_until(look).unwrap_or_else(|last| panic!("{what}: last seen: {last}"))
}

/// Waits until `look` returns `Ok`; returns its last error after the time limit.
pub fn try_until<T>(mut look: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match look() {
            Err(_) if begun.elapsed() <= PATIENCE => std::thread::sleep(Duration::from_millis(100)),
            outcome => return outcome,
        }
    }
}
