//! The store's contents in memory: current keys, history, leases. No IO and no clock of its own.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::history::History;
use super::lease::Leases;
use crate::contract::{Event, KeyValue, LeaseId, Op, RangeRequest, RangeResponse, Revision};
use crate::error::{Result, StoreError};

/// A new store's revision.
pub(super) const FIRST_REVISION: Revision = 1;

/// Contents of the store at `revision`.
pub(super) struct State {
    pub current: BTreeMap<Arc<str>, KeyValue>,
    pub history: History,
    pub leases: Leases,
    pub revision: Revision,
    /// Index of the last log frame that is part of this state.
    pub index: u64,
    /// Bytes of the current keys and values.
    pub bytes: u64,
}

/// Bytes that a key and its value contribute to the size.
pub(super) fn size_of(kv: &KeyValue) -> u64 {
    kv.key.len().saturating_add(kv.value.len()) as u64
}

/// A change that is evaluated but not applied.
pub(super) struct PendingChange {
    pub event: Event,
    pub lease: Option<LeaseId>,
}

impl PendingChange {
    /// Change that `op` makes to a key whose value is `prev`. The key's allocation is shared across versions.
    pub fn new(key: Arc<str>, prev: Option<KeyValue>, op: Op, revision: Revision) -> Self {
        let key = prev.as_ref().map_or(key, |kv| kv.key.clone());
        match op {
            Op::Put { value, lease } => {
                let (create_revision, version) =
                    prev.as_ref().map_or((revision, 1), |kv| (kv.create_revision, kv.version + 1));
                let kv = KeyValue { key, value, create_revision, mod_revision: revision, version };
                Self { event: Event::Put { kv, prev }, lease }
            }
            Op::Delete => Self { event: Event::Delete { key, revision, prev }, lease: None },
        }
    }
}

impl State {
    pub fn empty() -> Self {
        Self::at(FIRST_REVISION, FIRST_REVISION, 0)
    }

    /// A state without keys, to be filled from a checkpoint.
    pub fn at(revision: Revision, compacted: Revision, index: u64) -> Self {
        Self {
            current: BTreeMap::new(),
            history: History::new(compacted),
            leases: Leases::default(),
            revision,
            index,
            bytes: 0,
        }
    }

    /// Adds a key and value of a checkpoint.
    pub fn insert(&mut self, kv: KeyValue) {
        self.bytes = self.bytes.saturating_add(size_of(&kv));
        if let Some(old) = self.current.insert(kv.key.clone(), kv) {
            self.bytes = self.bytes.saturating_sub(size_of(&old));
        }
    }

    /// Applies a change. `at` is the time of the commit.
    pub fn apply(&mut self, change: PendingChange, at: u64) {
        let PendingChange { event, lease } = change;
        self.revision = event.revision();
        self.leases.attach(event.key(), lease);
        match &event {
            Event::Put { kv, .. } => self.insert(kv.clone()),
            Event::Delete { key, .. } => {
                if let Some(old) = self.current.remove(key) {
                    self.bytes = self.bytes.saturating_sub(size_of(&old));
                }
            }
        }
        self.history.push(event, at);
    }

    /// Rejects compacted and future revisions.
    pub fn check_revision(&self, requested: Revision) -> Result<()> {
        let compacted = self.history.compacted();
        if requested < compacted {
            return Err(StoreError::Compacted { requested, compacted });
        }
        if requested > self.revision {
            return Err(StoreError::FutureRevision { requested, current: self.revision });
        }
        Ok(())
    }

    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse> {
        let revision = request.revision.unwrap_or(self.revision);
        self.check_revision(revision)?;
        let (start, end) = (request.start.as_str(), request.end.as_str());
        let mut page = Page::new(request.limit);
        if start < end {
            let bounds = (Bound::Included(start), Bound::Excluded(end));
            let current = self.current.range::<str, _>(bounds).map(|(_, kv)| kv);
            if revision == self.revision {
                current.for_each(|kv| page.add(kv));
            } else {
                self.range_then(current, start, end, revision, &mut page);
            }
        }
        Ok(page.finish(self.revision))
    }

    /// The range at an earlier revision: for a key that has changed since, the value before its first change.
    fn range_then<'a>(
        &'a self,
        current: impl Iterator<Item = &'a KeyValue>,
        start: &str,
        end: &str,
        revision: Revision,
        page: &mut Page,
    ) {
        let mut then: BTreeMap<&str, Option<&KeyValue>> = BTreeMap::new();
        for event in self.history.after(revision) {
            let key: &str = event.key();
            if start <= key && key < end {
                then.entry(key).or_insert(event.prev());
            }
        }
        let mut then = then.into_iter().peekable();
        for kv in current {
            while let Some((_, old)) = then.next_if(|(key, _)| *key < &*kv.key) {
                old.into_iter().for_each(|kv| page.add(kv));
            }
            match then.next_if(|(key, _)| *key == &*kv.key) {
                Some((_, old)) => old.into_iter().for_each(|kv| page.add(kv)),
                None => page.add(kv),
            }
        }
        then.filter_map(|(_, old)| old).for_each(|kv| page.add(kv));
    }
}

/// Collects items up to a limit, and counts the rest.
struct Page {
    kvs: Vec<KeyValue>,
    limit: usize,
    count: u64,
}

impl Page {
    fn new(limit: usize) -> Self {
        Self { kvs: Vec::new(), limit: if limit == 0 { usize::MAX } else { limit }, count: 0 }
    }

    fn add(&mut self, kv: &KeyValue) {
        self.count += 1;
        if self.kvs.len() < self.limit {
            self.kvs.push(kv.clone());
        }
    }

    fn finish(self, revision: Revision) -> RangeResponse {
        let more = self.count > self.kvs.len() as u64;
        RangeResponse { kvs: self.kvs, more, count: self.count, revision }
    }
}
