//! Watch: start, filtering and end. Encoding is the caller's responsibility.

use super::{OrStatus, Registry, Served, store_error};
use crate::cache::{Cache, CacheError, Change, Cursor, Entry, Event, Progress};
use crate::chain::offload;
use crate::selection::Selection;
use crate::wire::options::ListOptions;
use machinery::status::{Result, Status};
use rand::Rng;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// Interval of bookmarks, which report the store's revision to idle watchers.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// Longest watch, in seconds: a year, so that any number sent by a client fits the clock.
const MAX_TIMEOUT: u64 = 365 * 24 * 60 * 60;

/// One item of a watch.
pub enum Notice {
    /// An object that existed at the start of the watch.
    Initial(Arc<Entry>),
    Event(Arc<Event>, Change),
    /// All events up to this revision have been sent; the flag marks the end of the initial events.
    Bookmark(u64, bool),
    /// An error event; the watch ends after it. Boxed to keep the other variants small.
    Error(Box<Status>),
}

/// One open watch.
pub struct Watcher {
    served: Arc<Served>,
    selection: Selection,
    scope: String,
    cursor: Cursor,
    ticks: tokio::sync::watch::Receiver<u64>,
    /// The cache may have events after the cursor whose tick was already consumed.
    unread: bool,
    pending: Vec<Notice>,
    deadline: Instant,
    /// Set to the next bookmark, if requested, or to the deadline; one timer for the whole watch.
    timer: Pin<Box<Sleep>>,
    store: Arc<dyn store::Store>,
}

impl Registry {
    pub async fn watch(
        &self,
        served: &Arc<Served>,
        namespace: &str,
        selection: Selection,
        options: &ListOptions,
    ) -> Result<Watcher> {
        let cache = &served.storage.cache;
        let layout = cache.layout.clone();
        let scope =
            selection.narrow(served.scope_key(namespace), served.namespaced() && namespace.is_empty());
        let now = cache.fresh(&scope).await.or_status()?;
        let requested = options.revision()?;
        let ticks = cache.ticks();
        let mut pending = Vec::new();
        let sends_initial = options.send_initial_events.unwrap_or(requested.is_none_or(|r| r == 0));
        if let Some(revision) = requested {
            served.await_revision(revision, now).await?;
        }
        let cursor = if sends_initial {
            let is_costly = selection.is_costly();
            if is_costly {
                offload::heavy().await;
            }
            let converts = selection.needs_conversion(served);
            let matches = |entry: &Entry| selection.matches(entry, &layout);
            let (mut view, cursor) =
                cache.list_and_watch(&scope, |entry| is_costly || converts || matches(entry));
            if converts {
                let verdicts = selection.matching_converted(served, &view.entries).await?;
                let mut verdicts = verdicts.into_iter();
                view.entries.retain(|_| verdicts.next() == Some(true));
            } else if is_costly {
                view.entries.retain(|entry| matches(entry));
            }
            pending.extend(view.entries.into_iter().map(Notice::Initial));
            if options.send_initial_events == Some(true) && options.allow_bookmarks {
                pending.push(Notice::Bookmark(view.revision.max(now), true));
            }
            cursor
        } else if let Some(revision) = requested.filter(|r| *r > 0) {
            match cache.watch_after(revision) {
                Ok(cursor) => cursor,
                Err(CacheError::TooOld { requested, oldest }) => {
                    let message = format!("too old resource version: {requested} ({oldest})");
                    pending.push(Notice::Error(Box::new(Status::expired(message))));
                    cache.watch_from_now()
                }
                Err(CacheError::Store(error)) => return Err(store_error(&error)),
            }
        } else {
            cache.watch_from_now()
        };
        pending.reverse();
        // Without a client timeout, a watch ends after a random time between the minimum and twice that.
        let shortest = self.tuning.min_request_timeout.as_secs().clamp(1, MAX_TIMEOUT);
        let seconds = match options.timeout_seconds {
            Some(seconds) if seconds > 0 => u64::try_from(seconds).unwrap_or(shortest).min(MAX_TIMEOUT),
            _ => rand::rng().random_range(shortest..2 * shortest),
        };
        let start = Instant::now();
        let deadline = start + Duration::from_secs(seconds);
        let wake = if options.allow_bookmarks { deadline.min(start + BOOKMARK_PERIOD) } else { deadline };
        Ok(Watcher {
            served: served.clone(),
            selection,
            scope,
            cursor,
            ticks,
            unread: true,
            pending,
            deadline,
            timer: Box::pin(sleep_until(wake)),
            store: served.storage.store.clone(),
        })
    }
}

impl Watcher {
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    fn cache(&self) -> &Cache {
        &self.served.storage.cache
    }

    /// The next notices, at least one; `None` when the watch is over.
    pub async fn next(&mut self) -> Option<Vec<Notice>> {
        if !self.pending.is_empty() {
            return Some(self.take_pending());
        }
        loop {
            if self.unread || self.ticks.has_changed().unwrap_or(true) {
                self.unread = true;
                self.ticks.borrow_and_update();
                let notices = self.collect().await?;
                self.unread = false;
                if !notices.is_empty() {
                    return Some(notices);
                }
            }
            tokio::select! {
                biased;
                changed = self.ticks.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                    self.unread = true;
                }
                () = &mut self.timer => {
                    if Instant::now() >= self.deadline {
                        return None;
                    }
                    let next = Instant::now() + BOOKMARK_PERIOD;
                    self.timer.as_mut().reset(self.deadline.min(next));
                    if let Some(bookmark) = self.bookmark().await {
                        return Some(bookmark);
                    }
                }
            }
        }
    }

    /// Returns initial objects in bounded portions, so that a huge list does not become one huge buffer.
    fn take_pending(&mut self) -> Vec<Notice> {
        const PORTION: usize = 512;
        let from = self.pending.len().saturating_sub(PORTION);
        let mut portion = self.pending.split_off(from);
        portion.reverse();
        portion
    }

    async fn collect(&mut self) -> Option<Vec<Notice>> {
        let mut cursor = self.cursor;
        let events = match self.cache().advance(&mut cursor) {
            Progress::Events(events) => events,
            Progress::Ended => return None,
            Progress::Lost => {
                tracing::info!(
                    resource = self.served.kind.resource(),
                    "watcher fell behind, closing its watch"
                );
                return None;
            }
        };
        let in_scope = |event: &Arc<Event>| event.entry.key.starts_with(&self.scope);
        let events: Vec<Arc<Event>> = events.into_iter().filter(in_scope).collect();
        let notices = if self.selection.needs_conversion(&self.served) {
            // Boxed: only few watches convert, so the others stay small.
            Box::pin(self.matching_converted_notices(events)).await
        } else {
            self.matching_notices(events)
        };
        // Advanced last: if the conversion is cancelled, the next call gets the same events again.
        self.cursor = cursor;
        Some(notices)
    }

    /// Notices of matching events.
    fn matching_notices(&self, events: Vec<Arc<Event>>) -> Vec<Notice> {
        let layout = &self.cache().layout;
        let mut notices = Vec::with_capacity(events.len());
        for event in events {
            if let Some(change) = event.seen_through(|entry| self.selection.matches(entry, layout)) {
                notices.push(Notice::Event(event, change));
            }
        }
        notices
    }

    /// Notices of matching events after conversion. A failed conversion ends the watch.
    async fn matching_converted_notices(&self, events: Vec<Arc<Event>>) -> Vec<Notice> {
        let mut states = Vec::new();
        for event in &events {
            states.extend(event.previous.clone());
            states.extend((!event.deleted).then(|| Arc::clone(&event.entry)));
        }
        let verdicts = match self.selection.matching_converted(&self.served, &states).await {
            Ok(verdicts) => verdicts,
            Err(status) => return vec![Notice::Error(Box::new(status))],
        };
        let mut verdicts = verdicts.into_iter();
        let mut notices = Vec::new();
        for event in events {
            let before = event.previous.is_some() && verdicts.next() == Some(true);
            let after = !event.deleted && verdicts.next() == Some(true);
            if let Some(change) = Change::between(before, after) {
                notices.push(Notice::Event(event, change));
            }
        }
        notices
    }

    /// A bookmark at the store's revision, unless events have arrived: those are sent first.
    async fn bookmark(&mut self) -> Option<Vec<Notice>> {
        let revision = self.store.barrier().await.ok()?;
        let mut notices = self.collect().await?;
        if notices.is_empty() {
            notices.push(Notice::Bookmark(revision, false));
        }
        Some(notices)
    }
}
