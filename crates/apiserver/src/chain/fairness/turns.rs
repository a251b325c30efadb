//! Turns: the number of requests that may start before all sockets are polled again.
//!
//! Most requests of this server run to completion without waiting, so a flood does not show as many executing
//! requests but as many readable connections, and a later client would be served after all of them. So only a few
//! requests may start per turn; then the sockets are polled and waiting requests are dispatched in fair order. A
//! flood then waits in its own queues without harm to other flows; flows with few requests are served in any turn.
//! Without overload, a start costs one atomic operation.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use tokio::sync::Notify;

/// Requests per turn and worker thread.
const PER_WORKER: i64 = 1;

#[derive(Debug)]
pub struct Turns {
    size: i64,
    left: AtomicI64,
    /// Number of this turn.
    number: AtomicU64,
    /// True while a task starts new turns; otherwise there is a single turn without limit.
    enforced: AtomicBool,
    half_gone: Notify,
}

impl Turns {
    pub fn new(workers: usize) -> Self {
        let size = PER_WORKER * i64::try_from(workers).unwrap_or(1).clamp(1, 64);
        Self {
            size,
            left: AtomicI64::new(size),
            number: AtomicU64::new(1),
            enforced: AtomicBool::new(false),
            half_gone: Notify::new(),
        }
    }

    pub fn size(&self) -> usize {
        usize::try_from(self.size).unwrap_or(1)
    }

    /// Takes a start of this turn; false if none is left.
    pub fn take(&self) -> bool {
        let before = self.left.fetch_sub(1, Ordering::Relaxed);
        if before == self.size / 2 {
            self.half_gone.notify_one();
        }
        before > 0 || !self.enforced.load(Ordering::Relaxed)
    }

    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) <= 0
    }

    /// Waits until the next turn is due. Turns are enforced from the first call on.
    pub async fn ending(&self) {
        self.enforced.store(true, Ordering::Relaxed);
        self.half_gone.notified().await;
    }

    pub fn begin(&self) {
        self.number.fetch_add(1, Ordering::Relaxed);
        self.left.store(self.size, Ordering::Relaxed);
    }

    /// Ends enforcement: every request may start.
    pub fn end(&self) {
        self.enforced.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turn_limits_starts_once_enforced() {
        let turns = Turns::new(1);
        for _ in 0..100 {
            assert!(turns.take(), "turns are not enforced yet");
        }
        turns.begin();
        let mut ending = Box::pin(turns.ending());
        assert!(futures_util::poll!(&mut ending).is_ready(), "the first turn has ended");
        let mut ending = Box::pin(turns.ending());
        for _ in 0..turns.size() {
            assert!(turns.take());
        }
        assert!(!turns.take());
        assert!(turns.is_over());
        assert!(futures_util::poll!(&mut ending).is_ready());
        turns.begin();
        assert!(turns.take());
        turns.end();
        assert!((0..100).all(|_| turns.take()));
    }
}
