//! Reading everything a resource has, also if a value or two cannot be read: what is stored under a key that is lost must
//! not keep everybody from the rest.

use super::{Cache, Entry};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{RangeRequest, Revision, StoreError};

/// Objects read per request while the cache fills.
const PAGE: usize = 2000;
/// With more values that cannot be read, the resource as a whole cannot.
const MAX_UNREADABLE: usize = 100;

/// All of a resource at one revision.
pub(super) struct Everything {
    pub objects: BTreeMap<Arc<str>, Arc<Entry>>,
    pub unreadable: BTreeSet<Arc<str>>,
    pub revision: Revision,
}

impl Cache {
    pub(super) async fn read_all(&self) -> Result<Everything, StoreError> {
        let (mut objects, mut unreadable) = (BTreeMap::new(), BTreeSet::new());
        let mut at = None;
        // Ranges to read, the next one last.
        let mut left = vec![(self.root.clone(), store::prefix_end(&self.root))];
        while let Some((start, end)) = left.pop() {
            let request = RangeRequest { start: start.clone(), end: end.clone(), limit: PAGE, revision: at };
            let page = match self.store.range(request).await {
                Ok(page) => page,
                Err(StoreError::Unreadable { key, reason }) if unreadable.len() < MAX_UNREADABLE => {
                    tracing::error!(%key, %reason, "a stored value cannot be read");
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
        Ok(Everything { objects, unreadable, revision: at.unwrap_or_default() })
    }

    /// Fails if a value in this place cannot be read. One that can again, or is gone, makes the cache start over.
    pub(super) async fn readable(&self, place: &str) -> Result<(), StoreError> {
        while let Some(key) = self.unreadable_in(place) {
            self.store.get(&key).await?;
            self.shared.ready.store(false, Ordering::Release);
            self.fill().await?;
            if self.unreadable_in(place).is_some_and(|still| still == key) {
                let reason = "it can be read at times only".into();
                return Err(StoreError::Unreadable { key, reason });
            }
        }
        Ok(())
    }

    /// The first key in a place whose value cannot be read. A place is a key, or all that begin with it if it ends with
    /// a slash.
    fn unreadable_in(&self, place: &str) -> Option<Arc<str>> {
        let state = self.shared.state.read();
        let next = state.unreadable.range::<str, _>((Bound::Included(place), Bound::Unbounded)).next()?;
        let inside = &**next == place || place.ends_with('/') && next.starts_with(place);
        inside.then(|| next.clone())
    }
}
