//! The established watches, and delivery of events to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::contract::{Event, Revision, WatchSink};
use crate::error::StoreError;

/// Events delivered per call while history is replayed.
const REPLAY: usize = 512;

/// All watches of a store.
#[derive(Default)]
pub(super) struct Watchers {
    watchers: Vec<Watcher>,
}

struct Watcher {
    prefix: String,
    sink: Box<dyn WatchSink>,
    /// Set when the handle is dropped, possibly while events are being delivered.
    cancelled: Arc<AtomicBool>,
}

impl Watchers {
    /// Replays history to the sink and adds it.
    pub fn add<'a>(
        &mut self,
        prefix: &str,
        mut sink: Box<dyn WatchSink>,
        history: impl Iterator<Item = &'a Event>,
        revision: Revision,
    ) -> Arc<AtomicBool> {
        let mut events = Vec::new();
        for event in history.filter(|event| event.key().starts_with(prefix)) {
            // Calls end at revision boundaries; one revision is never split.
            if events.len() >= REPLAY {
                sink.events(std::mem::take(&mut events));
            }
            events.push(event.clone());
        }
        if !events.is_empty() {
            sink.events(events);
        }
        sink.progress(revision);
        let cancelled = Arc::new(AtomicBool::new(false));
        self.watchers.push(Watcher { prefix: prefix.to_owned(), sink, cancelled: cancelled.clone() });
        cancelled
    }

    /// Delivers the events of a commit to the matching watches, and its revision to all.
    pub fn dispatch<'a>(&mut self, events: impl Iterator<Item = &'a Event> + Clone, revision: Revision) {
        self.sweep();
        for watcher in &mut self.watchers {
            let prefix = watcher.prefix.as_str();
            let wanted: Vec<Event> =
                events.clone().filter(|event| event.key().starts_with(prefix)).cloned().collect();
            let seen = wanted.last().map(Event::revision);
            if seen.is_some() {
                watcher.sink.events(wanted);
            }
            if seen != Some(revision) {
                watcher.sink.progress(revision);
            }
        }
    }

    /// Removes the watches whose handles have been dropped.
    pub fn sweep(&mut self) {
        self.watchers.retain(|watcher| !watcher.cancelled.load(Ordering::Acquire));
    }

    /// Ends all watches.
    pub fn close(&mut self, error: &StoreError) {
        self.sweep();
        for mut watcher in self.watchers.drain(..) {
            watcher.sink.closed(error.clone());
        }
    }
}
