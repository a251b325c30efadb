//! Turns: how many requests run before everybody who has something to say is heard again.
//!
//! Most requests of this server run to their end without ever waiting, so a flood does not show as many requests in
//! execution but as many connections that are ready to be read, and whoever comes later would be served after all of
//! them. So only a few requests may start per turn; then the sockets are looked at, and those who wait are served in
//! the order that is fair. A flood then waits in its own queues, where it harms nobody; whoever asks for little is served
//! in any turn. While there is no rush, a request takes its place in the turn by one atomic operation.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use tokio::sync::Notify;

/// Requests per turn and worker thread.
const PER_WORKER: i64 = 1;

#[derive(Debug)]
pub struct Turns {
    size: i64,
    left: AtomicI64,
    /// Of this turn.
    number: AtomicU64,
    /// Somebody begins new turns; otherwise there is but one, without end.
    kept: AtomicBool,
    half_gone: Notify,
}

impl Turns {
    pub fn new(workers: usize) -> Self {
        let size = PER_WORKER * i64::try_from(workers).unwrap_or(1).clamp(1, 64);
        Self {
            size,
            left: AtomicI64::new(size),
            number: AtomicU64::new(1),
            kept: AtomicBool::new(false),
            half_gone: Notify::new(),
        }
    }

    pub fn size(&self) -> usize {
        usize::try_from(self.size).unwrap_or(1)
    }

    /// Whether a request may start in this turn.
    pub fn take(&self) -> bool {
        let before = self.left.fetch_sub(1, Ordering::Relaxed);
        if before == self.size / 2 {
            self.half_gone.notify_one();
        }
        before > 0 || !self.kept.load(Ordering::Relaxed)
    }

    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) <= 0
    }

    /// Waits until it is time to think of the next turn. From the first call on, turns count.
    pub async fn ending(&self) {
        self.kept.store(true, Ordering::Relaxed);
        self.half_gone.notified().await;
    }

    pub fn begin(&self) {
        self.number.fetch_add(1, Ordering::Relaxed);
        self.left.store(self.size, Ordering::Relaxed);
    }

    /// Nobody begins turns any more: everything may start.
    pub fn end(&self) {
        self.kept.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_has_so_many_places() {
        let turns = Turns::new(1);
        for _ in 0..100 {
            assert!(turns.take(), "nobody keeps turns yet");
        }
        turns.begin();
        let mut ending = Box::pin(turns.ending());
        assert!(futures_util::poll!(&mut ending).is_ready(), "the first one is long over");
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
