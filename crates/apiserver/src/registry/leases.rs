//! Shared leases for expiring objects: one lease serves all writes of a period.

use std::time::{Duration, Instant};
use store::{LeaseId, Store, StoreError};

/// Objects may outlive their TTL by a twentieth of it, and by no more than this, so that one lease can serve many.
const MAX_SHARE: Duration = Duration::from_secs(60);

fn share(seconds: u64) -> Duration {
    (Duration::from_secs(seconds) / 20).min(MAX_SHARE)
}

#[derive(Default)]
pub struct Leases {
    current: tokio::sync::Mutex<Option<(u64, LeaseId, Instant)>>,
}

impl Leases {
    /// A lease that lasts at least `seconds`.
    pub async fn lease(&self, store: &dyn Store, seconds: u64) -> Result<LeaseId, StoreError> {
        let mut current = self.current.lock().await;
        if let Some((ttl, lease, since)) = *current
            && ttl == seconds
            && since.elapsed() < share(seconds)
        {
            return Ok(lease);
        }
        let lease = store.grant_lease(Duration::from_secs(seconds) + share(seconds)).await?;
        *current = Some((seconds, lease, Instant::now()));
        Ok(lease)
    }

    /// Drops a lease that the store no longer has: time during which the machine was suspended counts there, but not
    /// here.
    pub async fn forget(&self, lost: LeaseId) {
        let mut current = self.current.lock().await;
        if current.is_some_and(|(_, lease, _)| lease == lost) {
            *current = None;
        }
    }
}
