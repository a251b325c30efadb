//! Reads all objects of a resource, tolerating some unreadable values: a value encrypted with a lost key must not
//! make the others unavailable.

use super::{Cache, Entry};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{RangeRequest, Revision, StoreError};

/// Objects per range request while the cache fills.
const PAGE: usize = 2000;
/// Tolerated unreadable values; with more, filling fails.
const MAX_UNREADABLE: usize = 100;

/// All objects of a resource at one revision.
pub(super) struct ResourceSnapshot {
    pub objects: BTreeMap<Arc<str>, Arc<Entry>>,
    pub unreadable: BTreeSet<Arc<str>>,
    pub revision: Revision,
}

impl Cache {
    pub(super) async fn read_all(&self) -> Result<ResourceSnapshot, StoreError> {
        let (mut objects, mut unreadable) = (BTreeMap::new(), BTreeSet::new());
        let mut at = None;
        // Ranges to read, the next one last.
        let mut left = vec![(self.root.clone(), store::prefix_end(&self.root))];
        while let Some((start, end)) = left.pop() {
            let request = RangeRequest { start: start.clone(), end: end.clone(), limit: PAGE, revision: at };
            let page = match self.store.range(request).await {
                Ok(page) => page,
                Err(StoreError::Unreadable { key, reason }) if unreadable.len() < MAX_UNREADABLE => {
                    tracing::error!(%key, %reason, "failed to read stored object");
                    at.get_or_insert(self.store.barrier().await?);
                    left.push((format!("{key}\0"), end));
                    left.push((start, key.to_string()));
                    unreadable.insert(key);
                    continue;
                }
                Err(error) => return Err(error),
            };
            at.get_or_insert(page.revision);
            if let Some(last) = page.kvs.last().filter(|_| page.more) {
                left.push((format!("{}\0", last.key), end));
            }
            for kv in page.kvs {
                let entry = self.layout.entry(kv.key.clone(), kv.value, kv.mod_revision);
                objects.insert(kv.key, Arc::new(entry));
            }
        }
        Ok(ResourceSnapshot { objects, unreadable, revision: at.unwrap_or_default() })
    }

    /// Fails if a value under this prefix is unreadable. If one became readable again or was deleted, the cache
    /// refills.
    pub(super) async fn ensure_readable(&self, prefix: &str) -> Result<(), StoreError> {
        while let Some(key) = self.unreadable_in(prefix) {
            self.store.get(&key).await?;
            self.shared.ready.store(false, Ordering::Release);
            self.fill().await?;
            if self.unreadable_in(prefix).is_some_and(|still| still == key) {
                let reason = "value is readable only intermittently".into();
                return Err(StoreError::Unreadable { key, reason });
            }
        }
        Ok(())
    }

    /// First key under a prefix whose value is unreadable. A prefix is a key, or a key prefix that ends with a slash.
    fn unreadable_in(&self, prefix: &str) -> Option<Arc<str>> {
        let state = self.shared.state.read();
        let next = state.unreadable.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).next()?;
        let inside = &**next == prefix || prefix.ends_with('/') && next.starts_with(prefix);
        inside.then(|| next.clone())
    }
}
