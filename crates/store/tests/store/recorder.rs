//! A sink that records its calls, and bounded waits on it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store::{Event, Revision, StoreError, WatchSink};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Calls received by a watch so far.
#[derive(Default, Debug)]
pub struct RecordedCalls {
    pub events: Vec<Event>,
    pub progress: Revision,
    pub closed: Option<StoreError>,
}

impl RecordedCalls {
    /// Revision and key of each event; deletions have a `-` before the key.
    pub fn summary(&self) -> Vec<(Revision, String)> {
        let line = |event: &Event| match event {
            Event::Put { kv, .. } => (kv.mod_revision, kv.key.to_string()),
            Event::Delete { key, revision, .. } => (*revision, format!("-{key}")),
        };
        self.events.iter().map(line).collect()
    }
}

/// Shared by the test and its sink.
#[derive(Clone, Default)]
pub struct Recorder {
    pub calls: Arc<Mutex<RecordedCalls>>,
    changed: Arc<Notify>,
}

impl Recorder {
    pub fn sink(&self) -> Box<dyn WatchSink> {
        Box::new(self.clone())
    }

    /// Waits until the predicate holds; panics with what was last seen after ten seconds.
    #[track_caller]
    pub fn wait(
        &self,
        what: impl Into<String>,
        holds: impl Fn(&RecordedCalls) -> bool,
    ) -> impl Future<Output = ()> {
        let what = what.into();
        let location = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                let changed = self.changed.notified();
                if holds(&self.calls.lock()) {
                    return;
                }
                let late = timeout_at(deadline, changed).await.is_err();
                if late && !holds(&self.calls.lock()) {
                    let calls = self.calls.lock();
                    let (count, last) = (calls.events.len(), calls.events.last());
                    panic!(
                        "{location}: waited for {what}; last seen: {count} events, last {last:?}, progress {}, \
                         closed {:?}",
                        calls.progress, calls.closed
                    );
                }
            }
        }
    }

    /// Waits for this many events.
    #[track_caller]
    pub fn events(&self, count: usize) -> impl Future<Output = ()> {
        self.wait(format!("{count} events"), move |calls| calls.events.len() >= count)
    }
}

impl WatchSink for Recorder {
    fn events(&mut self, events: Vec<Event>) {
        assert!(!events.is_empty());
        self.calls.lock().events.extend(events);
        self.changed.notify_one();
    }

    fn progress(&mut self, revision: Revision) {
        let mut calls = self.calls.lock();
        assert!(revision >= calls.progress, "progress went back from {} to {revision}", calls.progress);
        calls.progress = revision;
        drop(calls);
        self.changed.notify_one();
    }

    fn closed(&mut self, error: StoreError) {
        self.calls.lock().closed = Some(error);
        self.changed.notify_one();
    }
}
