//! The most recently built documents of version 3. They are plain, so that a changed one is served without being compressed
//! and inflated; older ones are compressed. The last one of each path is kept for its members.

use super::Part;
use super::document::{Document, Span};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

/// Limits of plain documents: number, and total bytes.
const MAX_HOT: usize = 16;
const MAX_HOT_BYTES: usize = 8 << 20;

/// Places of the members of a document, by the part that they come from. Only documents of custom resources have them.
#[derive(Default)]
pub struct Layout {
    pub parts: Vec<PartLayout>,
    /// Definitions of the types that all parts share.
    pub common: BTreeMap<Arc<str>, Span>,
}

/// Members of one part.
pub struct PartLayout {
    pub part: Part,
    pub paths: BTreeMap<String, Span>,
    /// Types that the paths refer to.
    pub types: BTreeSet<Arc<str>>,
    pub definitions: BTreeMap<Arc<str>, Span>,
}

impl PartLayout {
    pub fn new(part: Part, types: BTreeSet<Arc<str>>) -> Self {
        Self { part, paths: BTreeMap::new(), types, definitions: BTreeMap::new() }
    }
}

/// The last document of a path.
pub struct LastDocument {
    pub layout: Layout,
    pub plain: Bytes,
}

impl LastDocument {
    /// The members of a part, if it is unchanged.
    pub fn part(&self, part: &Part) -> Option<&PartLayout> {
        self.layout.parts.iter().find(|known| known.part.is_same(part))
    }
}

#[derive(Default)]
pub struct HotDocuments {
    documents: Mutex<VecDeque<Hot>>,
}

struct Hot {
    path: Arc<str>,
    document: Weak<Document>,
    /// `None` after a later document of the same path.
    last: Option<Arc<LastDocument>>,
}

impl Hot {
    fn length(&self) -> usize {
        let of_last = self.last.as_ref().map(|last| last.plain.len());
        of_last.or_else(|| self.document.upgrade().map(|document| document.length)).unwrap_or_default()
    }
}

impl HotDocuments {
    /// The last document of a path.
    pub fn last(&self, path: &str) -> Option<Arc<LastDocument>> {
        self.documents.lock().iter().find(|known| &*known.path == path && known.last.is_some())?.last.clone()
    }

    /// Adds a document that has just been built.
    pub fn insert(&self, path: &str, document: &Arc<Document>, layout: Layout) {
        let plain = document.kept_plain().filter(|_| !layout.parts.is_empty());
        let last = plain.map(|plain| Arc::new(LastDocument { layout, plain }));
        let cold = {
            let mut hot = self.documents.lock();
            forget(&mut hot, path);
            hot.push_back(Hot { path: Arc::from(path), document: Arc::downgrade(document), last });
            let mut bytes: usize = hot.iter().map(Hot::length).sum();
            let mut cold = Vec::new();
            while hot.len() > MAX_HOT || bytes > MAX_HOT_BYTES {
                let Some(oldest) = hot.pop_front() else { break };
                bytes -= oldest.length().min(bytes);
                cold.extend(oldest.document.upgrade());
            }
            cold
        };
        cold.iter().for_each(|document| document.compact());
    }

    /// Drops the members of the document of a path that is no longer served.
    pub fn remove(&self, path: &str) {
        forget(&mut self.documents.lock(), path);
    }
}

fn forget(hot: &mut VecDeque<Hot>, path: &str) {
    hot.iter_mut().filter(|known| &*known.path == path).for_each(|known| known.last = None);
    hot.retain(|known| known.last.is_some() || known.document.strong_count() > 0);
}
