//! Follows a watch cache: what changed since the last look, or everything after a break.

use super::{Storage, store_error};
use crate::cache::{Cursor, Entry, Progress};
use machinery::status::Result;
use std::sync::Arc;
use tokio::sync::watch;

/// One followed cache.
pub struct Feed {
    storage: Arc<Storage>,
    ticks: watch::Receiver<u64>,
    cursor: Option<Cursor>,
}

/// What has happened to a followed cache.
pub enum News {
    /// Forget what was known; this is all there is.
    Everything(Vec<Arc<Entry>>),
    /// Objects in the order of their changes; `true`: it is gone.
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

    /// Whether there may be news. Costs one atomic read.
    pub fn stale(&self) -> bool {
        self.cursor.is_none() || self.ticks.has_changed().unwrap_or(true)
    }

    /// Waits until there may be news.
    pub async fn changed(&mut self) {
        if self.ticks.changed().await.is_err() {
            // The cache is gone with its server.
            std::future::pending::<()>().await;
        }
    }

    /// The news, and from then on the next ones.
    pub fn take(&mut self) -> News {
        self.ticks.borrow_and_update();
        let cache = &self.storage.cache;
        if let Some(cursor) = &mut self.cursor
            && let Progress::Events(events) = cache.advance(cursor)
        {
            let changes = events.iter().map(|event| (event.entry.clone(), event.deleted));
            return News::Changes(changes.collect());
        }
        let (view, cursor) = cache.list_and_watch(&cache.root, |_| true);
        self.cursor = Some(cursor);
        News::Everything(view.entries)
    }
}

/// Fills a cache that is empty or has lost its feed.
pub async fn ready(storage: &Storage) -> Result<()> {
    storage.cache.ready().await.map_err(|error| store_error(&error))
}
