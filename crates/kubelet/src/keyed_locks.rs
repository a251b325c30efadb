//! Locks of operations on one thing of many, such as a volume or a claim.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Two names that identify what is locked.
pub type LockKey = (String, String);

/// Locks that exist while they are used.
#[derive(Debug, Default)]
pub struct KeyedLocks(Mutex<HashMap<LockKey, Weak<tokio::sync::Mutex<()>>>>);

impl KeyedLocks {
    /// Waits for other operations on the same thing.
    pub async fn lock(&self, key: LockKey) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            locks.retain(|_, lock| lock.strong_count() > 0);
            let slot = locks.entry(key).or_default();
            slot.upgrade().unwrap_or_else(|| {
                let fresh = Arc::default();
                *slot = Arc::downgrade(&fresh);
                fresh
            })
        };
        lock.lock_owned().await
    }

    /// Locks several things, in the order of their keys so that no two callers wait for each other.
    pub async fn lock_all(&self, mut keys: Vec<LockKey>) -> Vec<OwnedMutexGuard<()>> {
        keys.sort();
        keys.dedup();
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            guards.push(self.lock(key).await);
        }
        guards
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn operations_on_the_same_thing_are_serialized() {
        let locks = KeyedLocks::default();
        let key = |name: &str| ("d".to_owned(), name.to_owned());
        let first = locks.lock(key("h")).await;
        let _other = locks.lock(key("g")).await;
        let mut waiting = Box::pin(locks.lock_all(vec![key("h"), key("a"), key("h")]));
        assert!(matches!(futures_util::poll!(&mut waiting), Poll::Pending));
        drop(first);
        assert_eq!(waiting.await.len(), 2);
        drop(locks.lock(key("x")).await);
        assert_eq!(locks.0.lock().len(), 2, "unused locks are removed");
    }
}
