//! The watch cache: one per resource, fed by a store watch, serving all reads.
//!
//! It holds the current objects as bytes and a window of recent changes. Readers copy reference-counted entries out
//! under a short lock; watchers hold a cursor into the window and are terminated when they fall out of it. With the
//! embedded store the feed runs before a write is acknowledged, so a reader always sees its own writes.

pub mod entry;
pub mod event;
mod fill;
mod window;

pub use entry::{Entry, Layout, Reader};
pub use event::{Change, Event, FrameEncoding};

use fill::ResourceSnapshot;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{Revision, Store, StoreError, WatchHandle, WatchSink};
use tokio::sync::watch;
use tokio::time::Instant;
use window::{Headroom, Window};

/// Watch cache of one resource.
pub struct Cache {
    pub layout: Arc<Layout>,
    /// Key prefix of this resource; it ends with a slash.
    pub root: String,
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    filling: tokio::sync::Mutex<Option<WatchHandle>>,
}

struct Shared {
    ready: AtomicBool,
    closed: AtomicBool,
    /// True if there are unreadable values; rarely set, so it is checked before the set of keys.
    has_unreadable: AtomicBool,
    state: RwLock<State>,
    /// Wakes watchers: the sequence number after the newest change.
    tick: watch::Sender<u64>,
    layout: Arc<Layout>,
}

struct State {
    objects: BTreeMap<Arc<str>, Arc<Entry>>,
    /// Keys with unreadable values.
    unreadable: BTreeSet<Arc<str>>,
    window: Window,
    /// Total size of the objects.
    object_bytes: usize,
    /// Revision up to which everything has been applied.
    revision: Revision,
    /// Number of fills: cursors of an earlier fill are invalid.
    epoch: u64,
}

/// A watcher's position in the window. An equal end position means that nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    next: u64,
    epoch: u64,
}

/// Result of advancing a cursor.
pub enum Progress {
    Events(Vec<Arc<Event>>),
    /// The cursor has fallen out of the window, or the cache was refilled.
    Lost,
    /// The server is shutting down.
    Ended,
}

/// Size of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub objects: usize,
    pub bytes: usize,
}

/// Counts of a cache since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub revision: Revision,
    pub fills: u64,
    /// Received changes.
    pub events: u64,
}

/// A consistent view: objects and their revision.
pub struct View {
    pub entries: Vec<Arc<Entry>>,
    pub revision: Revision,
    /// True if matching objects may exist beyond the limit.
    pub more: bool,
    /// Number of keys after the last one returned.
    pub remaining: usize,
    /// Number of objects that were read.
    pub scanned: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("too old resource version: {requested} ({oldest})")]
    TooOld { requested: Revision, oldest: Revision },
    #[error("failed to read the store")]
    Store(#[from] StoreError),
}

impl Cache {
    pub fn new(layout: Arc<Layout>, root: String, store: Arc<dyn Store>) -> Self {
        let shared = Arc::new(Shared {
            ready: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            has_unreadable: AtomicBool::new(false),
            state: RwLock::new(State::empty()),
            tick: watch::Sender::new(0),
            layout: layout.clone(),
        });
        Self { layout, root, store, shared, filling: tokio::sync::Mutex::new(None) }
    }

    /// Reports whether reads need not wait.
    pub fn is_ready(&self) -> bool {
        self.shared.ready.load(Ordering::Acquire) && !self.shared.has_unreadable.load(Ordering::Relaxed)
    }

    /// Reports whether the cache has its objects.
    pub fn is_filled(&self) -> bool {
        self.shared.ready.load(Ordering::Acquire)
    }

    /// Fills the cache on first use, or again after its feed failed.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.ready_for(&self.root).await
    }

    /// As [`Cache::ready`], for reads under one key prefix only (a key, or a prefix that ends with a slash):
    /// unreadable values elsewhere do not matter.
    pub async fn ready_for(&self, prefix: &str) -> Result<(), StoreError> {
        if !self.shared.ready.load(Ordering::Acquire) {
            self.fill().await?;
        }
        if !self.shared.has_unreadable.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.ensure_readable(prefix).await
    }

    async fn fill(&self) -> Result<(), StoreError> {
        let mut handle = self.filling.lock().await;
        if self.shared.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        *handle = None;
        let ResourceSnapshot { objects, unreadable, revision } = self.read_all().await?;
        self.shared.has_unreadable.store(!unreadable.is_empty(), Ordering::Relaxed);
        let epoch = {
            let mut state = self.shared.state.write();
            let epoch = state.epoch + 1;
            let window = state.window.restarted(revision);
            let object_bytes = objects.values().map(|entry: &Arc<Entry>| entry.bytes.len()).sum();
            *state = State { objects, unreadable, window, object_bytes, revision, epoch };
            epoch
        };
        let feed = Feed { shared: self.shared.clone() };
        *handle = Some(self.store.watch(&self.root, revision, Box::new(feed)).await?);
        // Set only now: before the feed runs, the cache is incomplete. The feed may have ended already.
        let state = self.shared.state.read();
        if state.epoch == epoch {
            self.shared.ready.store(true, Ordering::Release);
        }
        drop(state);
        // Wakes watchers of an earlier fill, which start over.
        self.shared.tick.send_modify(|end| *end += 1);
        Ok(())
    }

    /// Waits until the cache has everything under a prefix that was committed before this call; returns that
    /// revision.
    pub async fn fresh(&self, prefix: &str) -> Result<Revision, StoreError> {
        self.ready_for(prefix).await?;
        self.store.barrier().await
    }

    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.shared.state.read().objects.get(key).cloned()
    }

    /// Current size.
    pub fn size(&self) -> Size {
        let state = self.shared.state.read();
        Size { objects: state.objects.len(), bytes: state.object_bytes }
    }

    pub fn counts(&self) -> Counts {
        let state = self.shared.state.read();
        Counts { revision: state.revision, fills: state.epoch, events: state.window.end() }
    }

    /// Revision up to which this cache has applied changes of its own resource.
    pub fn revision(&self) -> Revision {
        self.shared.state.read().revision
    }

    /// Matching objects whose keys start with `scope`, beginning at `from` (a key, inclusive); at most `limit` of
    /// them (0: all). `at_least` is a revision known to be applied.
    pub fn list(
        &self,
        scope: &str,
        from: Option<&str>,
        limit: usize,
        at_least: Revision,
        matches: impl Fn(&Entry) -> bool,
    ) -> View {
        let state = self.shared.state.read();
        let start = from.filter(|from| *from > scope).unwrap_or(scope);
        let mut range = state
            .objects
            .range::<str, _>((Bound::Included(start), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(scope));
        let mut entries = Vec::new();
        let mut view = View {
            entries: Vec::new(),
            revision: state.revision.max(at_least),
            more: false,
            remaining: 0,
            scanned: 0,
        };
        for (_, entry) in range.by_ref() {
            // The remaining objects are matched by the next page.
            if limit > 0 && entries.len() == limit {
                view.more = true;
                view.remaining = 1 + range.count();
                break;
            }
            view.scanned += 1;
            if matches(entry) {
                entries.push(entry.clone());
            }
        }
        view.entries = entries;
        view
    }

    /// Current objects in scope and the cursor from which their changes follow without a gap.
    pub fn list_and_watch(&self, scope: &str, matches: impl Fn(&Entry) -> bool) -> (View, Cursor) {
        let state = self.shared.state.read();
        let mut scanned = 0;
        let entries = state
            .objects
            .range::<str, _>((Bound::Included(scope), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(scope))
            .inspect(|_| scanned += 1)
            .filter(|(_, entry)| matches(entry))
            .map(|(_, entry)| entry.clone())
            .collect();
        let view = View { entries, revision: state.revision, more: false, remaining: 0, scanned };
        (view, state.end())
    }

    /// Cursor after `revision`.
    pub fn watch_after(&self, revision: Revision) -> Result<Cursor, CacheError> {
        let state = self.shared.state.read();
        let oldest = state.window.oldest();
        if revision < oldest {
            return Err(CacheError::TooOld { requested: revision, oldest });
        }
        Ok(Cursor { next: state.window.position_after(revision), epoch: state.epoch })
    }

    /// Cursor after all changes so far.
    pub fn watch_from_now(&self) -> Cursor {
        self.shared.state.read().end()
    }

    /// Ends every open watch and all later ones, at shutdown.
    pub fn end_watches(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.tick.send_modify(|end| *end += 1);
    }

    /// Receiver that is notified of possible changes.
    pub fn ticks(&self) -> watch::Receiver<u64> {
        self.shared.tick.subscribe()
    }

    /// Returns the changes since the cursor and advances it.
    pub fn advance(&self, cursor: &mut Cursor) -> Progress {
        if self.shared.closed.load(Ordering::Acquire) {
            return Progress::Ended;
        }
        let state = self.shared.state.read();
        if cursor.epoch != state.epoch {
            return Progress::Lost;
        }
        let Some(events) = state.window.since(cursor.next) else { return Progress::Lost };
        cursor.next += events.len() as u64;
        Progress::Events(events)
    }
}

impl State {
    fn empty() -> Self {
        Self {
            objects: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            window: Window::new(0, 0, Headroom::of_process()),
            object_bytes: 0,
            revision: 0,
            epoch: 0,
        }
    }

    fn end(&self) -> Cursor {
        Cursor { next: self.window.end(), epoch: self.epoch }
    }

    fn apply(&mut self, layout: &Layout, change: store::Event, now: Instant) {
        match change {
            store::Event::Put { kv, .. } => {
                self.unreadable.remove(&kv.key);
                let entry = Arc::new(layout.entry(kv.key.clone(), kv.value, kv.mod_revision));
                self.object_bytes += entry.bytes.len();
                let previous = self.objects.insert(kv.key, entry.clone());
                self.object_bytes -= previous.as_ref().map_or(0, |previous| previous.bytes.len());
                self.revision = self.revision.max(kv.mod_revision);
                self.window.push(Event::new(entry, previous, false), now);
            }
            store::Event::Delete { key, revision, .. } => {
                self.revision = self.revision.max(revision);
                self.unreadable.remove(&key);
                let Some(previous) = self.objects.remove(&key) else { return };
                self.object_bytes -= previous.bytes.len();
                let last = Arc::new(previous.at(revision));
                self.window.push(Event::new(last, Some(previous), true), now);
            }
        }
    }
}

/// Applies the store's changes to the cache.
struct Feed {
    shared: Arc<Shared>,
}

impl WatchSink for Feed {
    fn events(&mut self, events: Vec<store::Event>) {
        let now = Instant::now();
        let end = {
            let mut state = self.shared.state.write();
            for event in events {
                state.apply(&self.shared.layout, event, now);
            }
            state.end().next
        };
        self.shared.tick.send_replace(end);
    }

    fn progress(&mut self, revision: Revision) {
        let mut state = self.shared.state.write();
        state.revision = state.revision.max(revision);
        if state.window.is_extended() {
            state.window.trim(Instant::now());
        }
    }

    fn closed(&mut self, error: StoreError) {
        let kind = &self.shared.layout.kind;
        match error {
            // The server is shutting down.
            StoreError::Closed => tracing::debug!(%kind, "watch cache stopped"),
            error => {
                tracing::warn!(%kind, %error, "watch cache lost its store watch, refilling on the next request");
            }
        }
        // Watchers of this fill may miss changes: they end, and their clients relist.
        {
            let mut state = self.shared.state.write();
            state.epoch += 1;
            self.shared.ready.store(false, Ordering::Release);
        }
        self.shared.tick.send_modify(|end| *end += 1);
    }
}
