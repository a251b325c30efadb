//! Waiting for what is to become true.

use std::time::{Duration, Instant};

/// Long enough for a slow machine that does other things, too.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` has nothing to complain about.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(last) if begun.elapsed() > PATIENCE => panic!("{what}: last seen: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
