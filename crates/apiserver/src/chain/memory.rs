//! Memory budget shared by all requests, a fraction of the process's limit.
//!
//! Before it gets a seat, a request reserves what decoding its body may take; if the budget is exhausted it waits for
//! others to finish, and returns 429 if that takes too long. Requests with small bodies reserve nothing.

use crate::memory_limit::memory_limit;
use machinery::codec::budget;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size reserve nothing.
const SMALL: u64 = 4 << 10;
/// Copies of a decoded body: as sent, as stored before, as changed.
const COPIES: u64 = 2;
/// Maximum number of concurrent heavy requests.
const HEAVY: u32 = 16;
/// Fraction of the process's memory for requests, and for bodies that wait for a seat.
const WORK_PART: u64 = 4;
const BODIES_PART: u64 = 16;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Memory for request processing and for buffered bodies, in KiB.
pub struct Memory {
    work: Arc<Semaphore>,
    total: u32,
    pub bodies: Arc<Semaphore>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(memory_limit())
    }
}

impl Memory {
    /// Budgets of a process with a limit of `limit` bytes.
    fn of(limit: u64) -> Self {
        let part = |part: u64, least: u64, most: u64| {
            u32::try_from((limit / part).clamp(least, most) / KIB).unwrap_or(u32::MAX)
        };
        let total = part(WORK_PART, 32 * MIB, 1024 * MIB);
        let semaphore = |permits: u32| Arc::new(Semaphore::new(permits as usize));
        Self { work: semaphore(total), total, bodies: semaphore(part(BODIES_PART, 8 * MIB, 128 * MIB)) }
    }

    /// Reserves memory for a request with a body of this size; `Err` if none was available before `until`.
    pub async fn reserve(
        &self,
        body: u64,
        is_heavy: bool,
        until: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, Exhausted> {
        if body <= SMALL && !is_heavy {
            return Ok(None);
        }
        let wanted = budget::of_body(usize::try_from(body).unwrap_or(usize::MAX)) as u64 * COPIES / KIB;
        let least = if is_heavy { self.total / HEAVY } else { 0 };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(least, self.total);
        let work = self.work.clone();
        if let Ok(share) = work.clone().try_acquire_many_owned(wanted) {
            return Ok(Some(share));
        }
        match tokio::time::timeout_at(until.into(), work.acquire_many_owned(wanted)).await {
            Ok(Ok(share)) => Ok(Some(share)),
            _ => Err(Exhausted),
        }
    }
}

/// The memory budget stayed exhausted for too long.
#[derive(Debug)]
pub struct Exhausted;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn memory_budget_exhausted_waits_then_fails() {
        let memory = Memory::of(256 * MIB);
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(
            matches!(memory.reserve(1000, false, soon()).await, Ok(None)),
            "small bodies reserve nothing"
        );
        let first = memory.reserve(3 << 20, true, soon()).await.expect("there is room");
        assert!(first.is_some());
        assert!(memory.reserve(3 << 20, true, soon()).await.is_err());
        assert!(memory.reserve(1000, true, soon()).await.is_err(), "heavy ones are few");
        assert!(matches!(memory.reserve(1000, false, soon()).await, Ok(None)));
        drop(first);
        let mut several = Vec::new();
        for _ in 0..HEAVY {
            several.push(memory.reserve(1000, true, soon()).await.expect("there is room"));
        }
        assert!(memory.reserve(1000, true, soon()).await.is_err());
        several.pop();
        assert!(memory.reserve(1000, true, soon()).await.is_ok());
    }
}
