//! Reads the changes of a watch cache incrementally, or everything after a gap.

use super::{OrStatus, Storage};
use crate::cache::{Cursor, Entry, Progress};
use machinery::status::Result;
use std::sync::Arc;
use tokio::sync::watch;

/// Position in one watch cache.
pub struct Feed {
    storage: Arc<Storage>,
    ticks: watch::Receiver<u64>,
    cursor: Option<Cursor>,
}

/// Changes of a watch cache.
pub enum FeedUpdate {
    /// The complete content, which replaces all earlier state.
    Snapshot(Vec<Arc<Entry>>),
    /// Objects in the order of their changes; `true`: deleted.
    Changes(Vec<(Arc<Entry>, bool)>),
}

impl Feed {
    pub fn new(storage: Arc<Storage>) -> Self {
        let ticks = storage.cache.ticks();
        Self { storage, ticks, cursor: None }
    }

    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Reports whether there may be changes. Costs one atomic read.
    pub fn stale(&self) -> bool {
        self.cursor.is_none() || self.ticks.has_changed().unwrap_or(true)
    }

    /// Waits until there may be changes.
    pub async fn changed(&mut self) {
        if self.ticks.changed().await.is_err() {
            // The cache was dropped with its server.
            std::future::pending::<()>().await;
        }
    }

    /// Returns the changes since the last call.
    pub fn take(&mut self) -> FeedUpdate {
        self.ticks.borrow_and_update();
        let cache = &self.storage.cache;
        if let Some(cursor) = &mut self.cursor
            && let Progress::Events(events) = cache.advance(cursor)
        {
            let changes = events.iter().map(|event| (event.entry.clone(), event.deleted));
            return FeedUpdate::Changes(changes.collect());
        }
        let (view, cursor) = cache.list_and_watch(&cache.root, |_| true);
        self.cursor = Some(cursor);
        FeedUpdate::Snapshot(view.entries)
    }
}

/// Fills a cache that is empty or has lost its watch.
pub async fn ready(storage: &Storage) -> Result<()> {
    storage.cache.ready().await.or_status()
}
