//! Events on their way to a webhook: what they may take together, and how they are written.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that events may take while they wait.
pub struct Budget {
    limit: usize,
    taken: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self { limit, taken: AtomicUsize::new(0) }
    }

    /// `None`: there is no room for it.
    pub fn hold(self: &Arc<Self>, event: Bytes) -> Option<Held> {
        let length = event.len();
        let take = |taken: usize| taken.checked_add(length).filter(|sum| *sum <= self.limit);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Held { event, budget: Arc::clone(self) })
    }
}

/// An event and its part of the budget.
pub struct Held {
    pub event: Bytes,
    budget: Arc<Budget>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.event.len(), Ordering::Relaxed);
    }
}

/// An EventList.
pub fn list<'a>(events: impl Iterator<Item = &'a Bytes> + Clone) -> Bytes {
    let length: usize = events.clone().map(|event| event.len() + 1).sum();
    let mut body = Vec::with_capacity(length + 128);
    body.extend_from_slice(br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#);
    for (at, event) in events.enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(event);
    }
    body.extend_from_slice(b"]}\n");
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn lists_are_json() {
        let one = Bytes::from_static(b"{\"level\":\"Metadata\"}");
        let other = Bytes::from_static(b"{\"a\":1}");
        let text = list([&one, &other].into_iter());
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(value["kind"], "EventList");
        assert_eq!(value["items"], json!([{"level": "Metadata"}, {"a": 1}]));
    }

    #[test]
    fn bytes_are_given_back() {
        let budget = Arc::new(Budget::new(10));
        let first = budget.hold(Bytes::from_static(b"1234567")).expect("room");
        assert!(budget.hold(Bytes::from_static(b"1234")).is_none());
        drop(first);
        assert!(budget.hold(Bytes::from_static(b"1234")).is_some());
    }
}
