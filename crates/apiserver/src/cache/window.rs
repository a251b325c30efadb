//! The recent changes of a resource, for watchers that start in the past or lag.
//!
//! A window always keeps its last changes up to [`BASE_EVENTS`] and [`BASE_BYTES`]. Beyond that it keeps changes of the
//! last [`FRESH`], as Kubernetes' `eventFreshDuration`, while the headroom that all windows of the process share lasts.

use super::event::Event;
use crate::memory_limit::memory_limit;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::Revision;
use tokio::time::Instant;

const BASE_EVENTS: usize = 4096;
const BASE_BYTES: usize = 4 << 20;
/// Age up to which changes are kept beyond the base. Bookmarks are sent every minute, so a client that reconnects with
/// the revision of its last bookmark finds the changes since.
const FRESH: Duration = Duration::from_secs(75);
/// Maximum number of changes, Kubernetes' upper bound.
const MAX_EVENTS: usize = 100 * 1024;
/// Memory of a change besides its objects' bytes.
const EVENT_OVERHEAD: usize = 512;
/// Fraction of the process's memory limit for changes beyond the base, and its bounds.
const HEADROOM_PART: u64 = 32;
const HEADROOM_LEAST: u64 = 4 << 20;
const HEADROOM_MOST: u64 = 64 << 20;

/// Memory shared by windows for fresh changes beyond their base.
pub(super) struct Headroom {
    left: AtomicUsize,
}

impl Headroom {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes) })
    }

    /// The headroom of this process.
    pub fn of_process() -> Arc<Self> {
        static PROCESS: OnceLock<Arc<Headroom>> = OnceLock::new();
        let build = || {
            let bytes = (memory_limit() / HEADROOM_PART).clamp(HEADROOM_LEAST, HEADROOM_MOST);
            Self::new(usize::try_from(bytes).unwrap_or(usize::MAX))
        };
        Arc::clone(PROCESS.get_or_init(build))
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Recorded {
    event: Arc<Event>,
    at: Instant,
}

/// A window of changes in the order of their revisions.
pub(super) struct Window {
    events: VecDeque<Recorded>,
    bytes: usize,
    /// Sequence number of the first change.
    first: u64,
    /// Oldest revision after which a watch may start.
    oldest: Revision,
    headroom: Arc<Headroom>,
    /// Bytes taken from the headroom.
    taken: usize,
}

impl Window {
    /// An empty window whose next change has the sequence number `first` and follows `oldest`.
    pub fn new(first: u64, oldest: Revision, headroom: Arc<Headroom>) -> Self {
        Self { events: VecDeque::new(), bytes: 0, first, oldest, headroom, taken: 0 }
    }

    /// An empty window for the changes after `revision` in the same cache.
    pub fn restarted(&self, revision: Revision) -> Self {
        Self::new(self.end(), revision, Arc::clone(&self.headroom))
    }

    pub fn oldest(&self) -> Revision {
        self.oldest
    }

    /// Sequence number after the newest change.
    pub fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Sequence number of the first change after `revision`.
    pub fn position_after(&self, revision: Revision) -> u64 {
        self.first + self.events.partition_point(|known| known.event.revision() <= revision) as u64
    }

    /// The changes from a sequence number on; `None` if the first of them are gone.
    pub fn since(&self, next: u64) -> Option<Vec<Arc<Event>>> {
        let skipped = usize::try_from(next.checked_sub(self.first)?).ok()?;
        Some(self.events.iter().skip(skipped).map(|known| Arc::clone(&known.event)).collect())
    }

    pub fn push(&mut self, event: Event, now: Instant) {
        self.bytes += event.bytes();
        self.events.push_back(Recorded { event: Arc::new(event), at: now });
        self.trim(now);
    }

    /// Reports whether changes are kept beyond the base, which [`Window::trim`] removes with time.
    pub fn is_extended(&self) -> bool {
        self.taken > 0
    }

    /// Removes the oldest changes that need not or cannot be kept. The newest one always stays.
    pub fn trim(&mut self, now: Instant) {
        while self.events.len() > 1 && self.extra() > 0 {
            let is_fresh = self.events.len() <= MAX_EVENTS
                && self.events.front().is_some_and(|oldest| now.duration_since(oldest.at) < FRESH);
            if is_fresh && self.extend() {
                break;
            }
            let Some(Recorded { event, .. }) = self.events.pop_front() else { break };
            self.bytes -= event.bytes();
            self.first += 1;
            self.oldest = event.revision();
        }
        let needed = if self.events.len() > 1 { self.extra() } else { 0 };
        if let Some(excess) = self.taken.checked_sub(needed) {
            self.headroom.give_back(excess);
            self.taken = needed;
        }
    }

    /// Memory beyond the base.
    fn extra(&self) -> usize {
        self.bytes.saturating_sub(BASE_BYTES) + self.events.len().saturating_sub(BASE_EVENTS) * EVENT_OVERHEAD
    }

    /// Takes what is needed beyond the base; `false` if the headroom is exhausted.
    fn extend(&mut self) -> bool {
        let missing = self.extra().saturating_sub(self.taken);
        let is_taken = missing == 0 || self.headroom.take(missing);
        if is_taken {
            self.taken += missing;
        }
        is_taken
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.headroom.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Entry;
    use bytes::Bytes;

    const PLENTY: usize = 1 << 40;

    fn event(revision: Revision, size: usize) -> Event {
        let entry =
            Entry::new(Arc::from("/registry/core/configmaps/n/a"), Bytes::from(vec![b'x'; size]), revision);
        Event::new(Arc::new(entry), None, false)
    }

    fn window(headroom: &Arc<Headroom>) -> Window {
        Window::new(0, 0, Arc::clone(headroom))
    }

    fn left(headroom: &Headroom) -> usize {
        headroom.left.load(Ordering::Relaxed)
    }

    #[test]
    fn changes_of_the_last_75_seconds_are_kept_beyond_the_base() {
        let headroom = Headroom::new(PLENTY);
        let mut window = window(&headroom);
        let start = Instant::now();
        // 200 changes a second, for two minutes.
        let at = |revision: u64| start + Duration::from_millis(revision * 5);
        let last = 24_000;
        for revision in 1..=last {
            window.push(event(revision, 100), at(revision));
            assert!(at(revision) - at(window.oldest() + 1) < FRESH, "{revision}: {}", window.oldest());
            let expected = revision.saturating_sub(75 * 200);
            assert_eq!(window.oldest(), expected, "at {revision}");
        }
        assert_eq!(
            window.since(window.position_after(last - 15_000)).map(|events| events.len()),
            Some(15_000)
        );
        assert!(window.since(last - 15_001).is_none(), "gone");
        // Later changes find older ones stale: the base stays.
        let late = at(last) + FRESH;
        assert!(window.is_extended());
        window.trim(late);
        assert!(!window.is_extended());
        assert_eq!(window.oldest(), last - BASE_EVENTS as u64);
        assert_eq!(left(&headroom), PLENTY);
    }

    #[test]
    fn large_changes_stay_within_the_base_and_the_headroom() {
        let room = 3 << 20;
        let headroom = Headroom::new(room);
        let (mut one, mut other) = (window(&headroom), window(&headroom));
        let now = Instant::now();
        for revision in 1..=64 {
            one.push(event(revision, 1 << 20), now);
            assert!(one.bytes <= BASE_BYTES + room, "{}", one.bytes);
        }
        assert_eq!(one.events.len(), 7);
        for revision in 65..=100 {
            other.push(event(revision, 1 << 20), now);
        }
        assert_eq!(other.events.len(), 4, "the first window has the headroom");
        one.trim(now + FRESH);
        assert_eq!((one.events.len(), left(&headroom)), (4, room));
        other.push(event(101, 1 << 20), now);
        assert_eq!((other.events.len(), left(&headroom)), (5, room - (1 << 20)));
        drop(other);
        assert_eq!(left(&headroom), room);
    }

    #[test]
    fn number_of_changes_is_bounded() {
        let headroom = Headroom::new(PLENTY);
        let mut window = window(&headroom);
        let now = Instant::now();
        let last = MAX_EVENTS as u64 + 10;
        for revision in 1..=last {
            window.push(event(revision, 0), now);
        }
        assert_eq!((window.events.len(), window.oldest(), window.end()), (MAX_EVENTS, 10, last));
    }

    #[test]
    fn change_larger_than_everything_is_kept_alone() {
        let headroom = Headroom::new(0);
        let mut window = window(&headroom);
        for revision in 1..=3 {
            window.push(event(revision, BASE_BYTES + 1), Instant::now());
        }
        assert_eq!((window.events.len(), window.oldest(), left(&headroom)), (1, 2, 0));
        let next = window.restarted(9);
        assert_eq!((next.end(), next.oldest()), (3, 9));
    }
}
