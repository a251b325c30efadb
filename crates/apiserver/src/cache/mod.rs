//! The watch cache: one per resource, fed by the store, read by everybody.
//!
//! It holds the current objects as bytes and a window of recent changes. Readers copy reference-counted
//! entries out under a short lock; watchers keep a cursor into the window and are cut off when they fall
//! out of it. With the embedded store the feed runs before a write is acknowledged, so a reader always
//! sees its own writes.

pub mod canonical;
pub mod entry;
pub mod event;
mod fill;

pub use entry::{Entry, Layout, Reader};
pub use event::{Change, Event, FrameEncoding};

use fill::Everything;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{Revision, Store, StoreError, WatchHandle, WatchSink};
use tokio::sync::watch;

/// Changes kept for watchers that start in the past or lag behind.
const WINDOW_EVENTS: usize = 4096;
const WINDOW_BYTES: usize = 4 << 20;

/// The cache of one resource.
pub struct Cache {
    pub layout: Arc<Layout>,
    /// Keys of this resource start with it; it ends with a slash.
    pub root: String,
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    filling: tokio::sync::Mutex<Option<WatchHandle>>,
}

struct Shared {
    ready: AtomicBool,
    closed: AtomicBool,
    /// There are values that cannot be read; rarely true, so it is asked first.
    blemished: AtomicBool,
    state: RwLock<State>,
    /// Wakes watchers: the sequence number after the newest change.
    tick: watch::Sender<u64>,
    layout: Arc<Layout>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Arc<str>, Arc<Entry>>,
    /// Keys whose values cannot be read.
    unreadable: BTreeSet<Arc<str>>,
    window: VecDeque<Arc<Event>>,
    window_bytes: usize,
    /// Of the objects, together.
    object_bytes: usize,
    /// Sequence number of the window's first event.
    first: u64,
    /// Watches may start after any revision from here on.
    oldest: Revision,
    /// Everything up to here has been applied.
    revision: Revision,
    /// Counts fills: a watcher of an earlier fill has lost its place.
    epoch: u64,
}

/// A watcher's place in the window. As long as the place after everything is the same, nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    next: u64,
    epoch: u64,
}

/// What a watcher finds at its cursor.
pub enum Progress {
    Events(Vec<Arc<Event>>),
    /// It has fallen out of the window, or the cache started over.
    Lost,
    /// The server stops.
    Ended,
}

/// How much a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub objects: usize,
    pub bytes: usize,
}

/// A consistent view: the objects and the revision they are at.
pub struct View {
    pub entries: Vec<Arc<Entry>>,
    pub revision: Revision,
    /// Matching objects beyond the limit exist.
    pub more: bool,
    /// How many keys follow the last one returned.
    pub remaining: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld { asked: Revision, oldest: Revision },
    #[error("store")]
    Store(#[from] StoreError),
}

impl Cache {
    pub fn new(layout: Arc<Layout>, root: String, store: Arc<dyn Store>) -> Self {
        let shared = Arc::new(Shared {
            ready: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            blemished: AtomicBool::new(false),
            state: RwLock::default(),
            tick: watch::Sender::new(0),
            layout: layout.clone(),
        });
        Self { layout, root, store, shared, filling: tokio::sync::Mutex::new(None) }
    }

    /// Whether everybody may read without waiting.
    pub fn is_ready(&self) -> bool {
        self.shared.ready.load(Ordering::Acquire) && !self.shared.blemished.load(Ordering::Relaxed)
    }

    /// Fills the cache on first use, or again after its feed has broken.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.ready_for(&self.root).await
    }

    /// As [`Cache::ready`], for those who look at one place only (a key, or keys that begin with something that ends
    /// with a slash): a value elsewhere that cannot be read does not concern them.
    pub async fn ready_for(&self, place: &str) -> Result<(), StoreError> {
        if !self.shared.ready.load(Ordering::Acquire) {
            self.fill().await?;
        }
        if !self.shared.blemished.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.readable(place).await
    }

    async fn fill(&self) -> Result<(), StoreError> {
        let mut handle = self.filling.lock().await;
        if self.shared.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        *handle = None;
        let Everything { objects, unreadable, revision } = self.read_all().await?;
        self.shared.blemished.store(!unreadable.is_empty(), Ordering::Relaxed);
        let epoch = {
            let mut state = self.shared.state.write();
            let epoch = state.epoch + 1;
            let first = state.first + state.window.len() as u64;
            let object_bytes = objects.values().map(|entry: &Arc<Entry>| entry.bytes.len()).sum();
            *state = State {
                objects,
                unreadable,
                object_bytes,
                first,
                oldest: revision,
                revision,
                epoch,
                ..State::default()
            };
            epoch
        };
        let feed = Feed { shared: self.shared.clone() };
        *handle = Some(self.store.watch(&self.root, revision, Box::new(feed)).await?);
        // Only now: until the feed runs, nobody may take the cache for complete. It may have ended already.
        let state = self.shared.state.read();
        if state.epoch == epoch {
            self.shared.ready.store(true, Ordering::Release);
        }
        drop(state);
        // Followers of an earlier fill start over.
        self.shared.tick.send_modify(|end| *end += 1);
        Ok(())
    }

    /// Waits until the cache holds everything in a place that was committed before this call; returns that revision.
    pub async fn fresh(&self, place: &str) -> Result<Revision, StoreError> {
        self.ready_for(place).await?;
        self.store.barrier().await
    }

    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.shared.state.read().objects.get(key).cloned()
    }

    /// How much it holds now.
    pub fn size(&self) -> Size {
        let state = self.shared.state.read();
        Size { objects: state.objects.len(), bytes: state.object_bytes }
    }

    /// Revision up to which this cache has applied changes of its own resource.
    pub fn revision(&self) -> Revision {
        self.shared.state.read().revision
    }

    /// Objects whose keys start with `scope`, beginning at `from` (a key, inclusive), that match; at most
    /// `limit` of them (0: all). `at_least` is a revision the caller knows to be applied.
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
        let mut view =
            View { entries: Vec::new(), revision: state.revision.max(at_least), more: false, remaining: 0 };
        for (_, entry) in range.by_ref() {
            // Whether anything of the rest matches is for the next page to find out.
            if limit > 0 && entries.len() == limit {
                view.more = true;
                view.remaining = 1 + range.count();
                break;
            }
            if matches(entry) {
                entries.push(entry.clone());
            }
        }
        view.entries = entries;
        view
    }

    /// The current objects in scope and the place from which their changes follow without a gap.
    pub fn list_and_watch(&self, scope: &str, matches: impl Fn(&Entry) -> bool) -> (View, Cursor) {
        let state = self.shared.state.read();
        let entries = state
            .objects
            .range::<str, _>((Bound::Included(scope), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(scope))
            .filter(|(_, entry)| matches(entry))
            .map(|(_, entry)| entry.clone())
            .collect();
        let view = View { entries, revision: state.revision, more: false, remaining: 0 };
        (view, state.end())
    }

    /// The place after `revision`.
    pub fn watch_after(&self, revision: Revision) -> Result<Cursor, CacheError> {
        let state = self.shared.state.read();
        if revision < state.oldest {
            return Err(CacheError::TooOld { asked: revision, oldest: state.oldest });
        }
        let skipped = state.window.partition_point(|event| event.revision() <= revision);
        Ok(Cursor { next: state.first + skipped as u64, epoch: state.epoch })
    }

    /// The place after everything so far.
    pub fn watch_from_now(&self) -> Cursor {
        self.shared.state.read().end()
    }

    /// Ends every open watch and those to come: the server stops.
    pub fn end_watches(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.tick.send_modify(|end| *end += 1);
    }

    /// Wakes when there may be something new.
    pub fn ticks(&self) -> watch::Receiver<u64> {
        self.shared.tick.subscribe()
    }

    /// What has happened since the cursor, and moves it.
    pub fn advance(&self, cursor: &mut Cursor) -> Progress {
        if self.shared.closed.load(Ordering::Acquire) {
            return Progress::Ended;
        }
        let state = self.shared.state.read();
        if cursor.epoch != state.epoch || cursor.next < state.first {
            return Progress::Lost;
        }
        let skip = (cursor.next - state.first) as usize;
        let events: Vec<_> = state.window.iter().skip(skip).cloned().collect();
        cursor.next += events.len() as u64;
        Progress::Events(events)
    }
}

impl State {
    fn end(&self) -> Cursor {
        Cursor { next: self.first + self.window.len() as u64, epoch: self.epoch }
    }

    fn remember(&mut self, event: Event) {
        self.window_bytes += event.bytes();
        self.window.push_back(Arc::new(event));
        while self.window.len() > WINDOW_EVENTS || self.window_bytes > WINDOW_BYTES && self.window.len() > 1 {
            let Some(gone) = self.window.pop_front() else { break };
            self.window_bytes -= gone.bytes();
            self.first += 1;
            self.oldest = gone.revision();
        }
    }

    fn apply(&mut self, layout: &Layout, change: store::Event) {
        match change {
            store::Event::Put { kv, .. } => {
                self.unreadable.remove(&kv.key);
                let entry = Arc::new(layout.entry(kv.key.clone(), kv.value, kv.mod_revision));
                self.object_bytes += entry.bytes.len();
                let previous = self.objects.insert(kv.key, entry.clone());
                self.object_bytes -= previous.as_ref().map_or(0, |previous| previous.bytes.len());
                self.revision = self.revision.max(kv.mod_revision);
                self.remember(Event::new(entry, previous, false));
            }
            store::Event::Delete { key, revision, .. } => {
                self.revision = self.revision.max(revision);
                self.unreadable.remove(&key);
                let Some(previous) = self.objects.remove(&key) else { return };
                self.object_bytes -= previous.bytes.len();
                let last = Arc::new(previous.at(revision));
                self.remember(Event::new(last, Some(previous), true));
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
        let end = {
            let mut state = self.shared.state.write();
            for event in events {
                state.apply(&self.shared.layout, event);
            }
            state.end().next
        };
        self.shared.tick.send_replace(end);
    }

    fn progress(&mut self, revision: Revision) {
        let mut state = self.shared.state.write();
        state.revision = state.revision.max(revision);
    }

    fn closed(&mut self, error: StoreError) {
        let kind = &self.shared.layout.kind;
        match error {
            // The server stops.
            StoreError::Closed => tracing::debug!(%kind, "watch cache ends"),
            error => {
                tracing::warn!(%kind, %error, "watch cache lost its feed; it fills again on the next request");
            }
        }
        // Watchers of this fill can never be sure again: they end and their clients list anew.
        {
            let mut state = self.shared.state.write();
            state.epoch += 1;
            self.shared.ready.store(false, Ordering::Release);
        }
        self.shared.tick.send_modify(|end| *end += 1);
    }
}
