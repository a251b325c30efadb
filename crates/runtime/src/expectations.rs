//! What a loop has asked for and not yet seen in its cache. Until it has, it neither creates nor deletes more: a slow
//! cache never makes it do either twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Key;

/// What has not shown up by then never will: Kubernetes waits as long.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// The expectations of one loop. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    keys: Arc<Mutex<HashMap<Key, Expected>>>,
}

#[derive(Debug)]
struct Expected {
    creations: usize,
    /// By uid: an object that is deleted is seen leaving once as it is marked and once as it goes.
    deletions: HashSet<String>,
    since: Instant,
}

impl Expectations {
    /// Before creating: so many objects will show up.
    pub fn expect_creations(&self, key: &Key, count: usize) {
        let mut keys = self.keys.lock();
        let expected = Self::entry(&mut keys, key);
        expected.creations += count;
    }

    /// Before deleting: these objects will go.
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

    /// An object has shown up, or creating it failed.
    pub fn created(&self, key: &Key) {
        self.creations_failed(key, 1);
    }

    /// So many objects will not show up after all.
    pub fn creations_failed(&self, key: &Key, count: usize) {
        if let Some(expected) = self.keys.lock().get_mut(key) {
            expected.creations = expected.creations.saturating_sub(count);
        }
    }

    /// An object is gone or going, or deleting it failed.
    pub fn deleted(&self, key: &Key, uid: &str) {
        if let Some(expected) = self.keys.lock().get_mut(key) {
            expected.deletions.remove(uid);
        }
    }

    /// Whether everything expected has been seen, or has taken too long.
    #[must_use]
    pub fn satisfied(&self, key: &Key) -> bool {
        self.keys.lock().get(key).is_none_or(|expected| {
            (expected.creations == 0 && expected.deletions.is_empty()) || expected.since.elapsed() > PATIENCE
        })
    }

    /// The object itself is gone.
    pub fn forget(&self, key: &Key) {
        self.keys.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_is_done_twice_until_seen_or_long_past() {
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
