//! A change as sent to watchers, framed once per encoding and shared by all of them.

use super::entry::{Entry, Layout};
use bytes::Bytes;
use machinery::codec::protobuf;
use std::sync::{Arc, OnceLock};

/// Event type as seen by one watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added = 0,
    Modified = 1,
    Deleted = 2,
}

impl Change {
    /// Event type by whether the object matched before and matches now.
    pub fn between(before: bool, after: bool) -> Option<Self> {
        match (before, after) {
            (false, true) => Some(Self::Added),
            (true, true) => Some(Self::Modified),
            (true, false) => Some(Self::Deleted),
            (false, false) => None,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// Encodings with shared frames; others are encoded per watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEncoding {
    Json = 0,
    Protobuf = 1,
}

/// One committed change of one object.
#[derive(Debug)]
pub struct Event {
    /// The object after the change; for a deletion the last state at the revision of the deletion.
    pub entry: Arc<Entry>,
    pub previous: Option<Arc<Entry>>,
    pub deleted: bool,
    /// Encoded for the first watcher that needs one.
    frames: OnceLock<Box<[OnceLock<Bytes>; 6]>>,
    /// Previous state at this event's revision, for watchers whose selector no longer matches.
    left: OnceLock<Arc<Entry>>,
}

impl Event {
    pub fn new(entry: Arc<Entry>, previous: Option<Arc<Entry>>, deleted: bool) -> Self {
        Self { entry, previous, deleted, frames: OnceLock::new(), left: OnceLock::new() }
    }

    /// Approximate memory of the event.
    pub fn bytes(&self) -> usize {
        self.entry.bytes.len() + self.previous.as_ref().map_or(0, |previous| previous.bytes.len())
    }

    pub fn revision(&self) -> u64 {
        self.entry.revision
    }

    /// Event type for a watcher with a filter, if it sees the change: an object that leaves the filter is deleted,
    /// one that enters it is added.
    pub fn seen_through(&self, matches: impl Fn(&Entry) -> bool) -> Option<Change> {
        let before = self.previous.as_deref().is_some_and(&matches);
        let after = !self.deleted && matches(&self.entry);
        Change::between(before, after)
    }

    /// Object of the event: deletions have the last state the watcher saw, at the new revision.
    pub fn shown(&self, change: Change) -> &Arc<Entry> {
        match (&self.previous, change) {
            (Some(previous), Change::Deleted) if !self.deleted => {
                self.left.get_or_init(|| Arc::new(previous.at(self.revision())))
            }
            _ => &self.entry,
        }
    }

    /// Watch frame of a change in a shared encoding.
    pub fn frame(&self, layout: &Layout, change: Change, encoding: FrameEncoding) -> Bytes {
        self.frames.get_or_init(Box::default)[encoding as usize * 3 + change as usize]
            .get_or_init(|| frame(layout, self.shown(change), change, encoding))
            .clone()
    }
}

/// Encodes a single frame: initial events are built from entries, not from changes.
pub fn frame(layout: &Layout, entry: &Entry, change: Change, encoding: FrameEncoding) -> Bytes {
    match encoding {
        FrameEncoding::Json => {
            let mut out = Vec::with_capacity(entry.bytes.len() + 96);
            out.extend_from_slice(b"{\"type\":\"");
            out.extend_from_slice(change.text().as_bytes());
            out.extend_from_slice(b"\",\"object\":");
            layout.prefix.write_object(&mut out, &entry.bytes, entry.revision);
            out.extend_from_slice(b"}\n");
            out.into()
        }
        FrameEncoding::Protobuf => {
            let message = entry.protobuf(layout).cloned().unwrap_or_default();
            let object = protobuf::wrap(&layout.api_version, &layout.kind, &message);
            protobuf::watch_frame(change.text(), &object).into()
        }
    }
}
