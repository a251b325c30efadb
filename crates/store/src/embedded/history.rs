//! Recent changes, bounded by age and by bytes, so that older revisions can be read and watched.

use std::collections::VecDeque;
use std::mem::size_of;

use crate::contract::{Event, Revision};

/// Memory of one change beyond its key and its superseded value.
const OVERHEAD: usize = size_of::<Entry>() + 48;

/// Changes, oldest first.
pub(super) struct History {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Revision of the last dropped change; older revisions are unavailable.
    compacted: Revision,
}

pub(super) struct Entry {
    pub event: Event,
    /// Time of the change, in milliseconds of the store's clock.
    pub at: u64,
}

impl Entry {
    /// Memory freed by dropping the entry: the value that its change replaced. The value it introduced is either
    /// current or counted where it was replaced.
    fn cost(&self) -> usize {
        OVERHEAD + self.event.key().len() + self.event.prev().map_or(0, |kv| kv.value.len())
    }
}

impl History {
    pub fn new(compacted: Revision) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, compacted }
    }

    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> + ExactSizeIterator {
        self.entries.iter()
    }

    pub fn push(&mut self, event: Event, at: u64) {
        let entry = Entry { event, at };
        self.bytes += entry.cost();
        self.entries.push_back(entry);
    }

    /// Changes after this revision, oldest first.
    pub fn after(&self, revision: Revision) -> impl Iterator<Item = &Event> {
        let first = self.entries.partition_point(|entry| entry.event.revision() <= revision);
        self.entries.range(first..).map(|entry| &entry.event)
    }

    /// Drops the changes up to this revision.
    pub fn compact(&mut self, revision: Revision) {
        while self.entries.front().is_some_and(|entry| entry.event.revision() <= revision) {
            self.drop_oldest();
        }
        self.compacted = self.compacted.max(revision);
        self.shrink();
    }

    /// Drops entries that are older than `oldest` (in milliseconds) or exceed `bytes`.
    pub fn trim(&mut self, oldest: u64, bytes: usize) {
        while self.bytes > bytes || self.oldest().is_some_and(|at| at < oldest) {
            self.drop_oldest();
        }
        self.shrink();
    }

    /// Time of the oldest change.
    pub fn oldest(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.at)
    }

    fn drop_oldest(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.cost();
            self.compacted = self.compacted.max(entry.event.revision());
        }
    }

    fn shrink(&mut self) {
        let capacity = self.entries.capacity();
        if capacity > 1024 && self.entries.len() < capacity / 4 {
            self.entries.shrink_to(capacity / 2);
        }
    }
}
