//! Creations and deletions of a loop that its cache does not show yet. Until it does, the loop neither creates nor
//! deletes more, so a stale cache never causes a duplicate.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Key;

/// Time after which an expectation is dropped: Kubernetes' value.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// The expectations of one loop. Clones share them.
///
/// ```
/// use runtime::{Expectations, Key};
///
/// let (expectations, key) = (Expectations::default(), Key::new("default", "web"));
/// expectations.expect_creations(&key, 1);
/// assert!(!expectations.satisfied(&key), "the loop creates nothing more");
/// expectations.created(&key);
/// assert!(expectations.satisfied(&key));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    keys: Arc<Mutex<HashMap<Key, Expected>>>,
}

#[derive(Debug)]
struct Expected {
    creations: usize,
    /// By uid: a deletion is observed twice, once when the object is marked and once when it is removed.
    deletions: HashSet<String>,
    since: Instant,
}

impl Expectations {
    /// Expects `count` objects to appear. Called before they are created.
    pub fn expect_creations(&self, key: &Key, count: usize) {
        let mut keys = self.keys.lock();
        let expected = Self::entry(&mut keys, key);
        expected.creations += count;
    }

    /// Expects these objects to be removed. Called before they are deleted.
    pub fn expect_deletions<'a>(&self, key: &Key, uids: impl IntoIterator<Item = &'a str>) {
        let mut keys = self.keys.lock();
        let expected = Self::entry(&mut keys, key);
        expected.deletions.extend(uids.into_iter().map(str::to_owned));
    }

    fn entry<'a>(keys: &'a mut HashMap<Key, Expected>, key: &Key) -> &'a mut Expected {
        let fresh = || Expected { creations: 0, deletions: HashSet::new(), since: Instant::now() };
        let expected = keys.entry(key.clone()).or_insert_with(fresh);
        expected.since = Instant::now();
        expected
    }

    /// Records that an object has appeared, or that creating it failed.
    pub fn created(&self, key: &Key) {
        self.creations_failed(key, 1);
    }

    /// Lowers the number of expected objects: these were not created.
    pub fn creations_failed(&self, key: &Key, count: usize) {
        if let Some(expected) = self.keys.lock().get_mut(key) {
            expected.creations = expected.creations.saturating_sub(count);
        }
    }

    /// Records that an object is deleted or terminating, or that deleting it failed.
    pub fn deleted(&self, key: &Key, uid: &str) {
        if let Some(expected) = self.keys.lock().get_mut(key) {
            expected.deletions.remove(uid);
        }
    }

    /// True if everything expected has been observed or has timed out.
    #[must_use]
    pub fn satisfied(&self, key: &Key) -> bool {
        self.keys.lock().get(key).is_none_or(|expected| {
            (expected.creations == 0 && expected.deletions.is_empty()) || expected.since.elapsed() > PATIENCE
        })
    }

    /// Drops the expectations of a deleted object.
    pub fn forget(&self, key: &Key) {
        self.keys.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expectations_unobserved_block_until_timeout() {
        let (all, key) = (Expectations::default(), Key::new("n", "a"));
        assert!(all.satisfied(&key));
        all.expect_creations(&key, 2);
        all.created(&key);
        assert!(!all.satisfied(&key));
        all.created(&key);
        assert!(all.satisfied(&key));
        all.created(&key);
        all.expect_deletions(&key, ["u", "v"]);
        all.deleted(&key, "u");
        all.deleted(&key, "u");
        assert!(!all.satisfied(&key));
        tokio::time::advance(PATIENCE + Duration::from_secs(1)).await;
        assert!(all.satisfied(&key));
        all.expect_creations(&key, 1);
        all.forget(&key);
        assert!(all.satisfied(&key));
    }
}
