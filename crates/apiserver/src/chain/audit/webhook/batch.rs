//! Events queued for a webhook: their memory budget and their encoding.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Byte budget of queued events.
pub struct Budget {
    limit: usize,
    taken: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self { limit, taken: AtomicUsize::new(0) }
    }

    /// Reserves the event's size; `None` if the budget is exhausted.
    pub fn hold(self: &Arc<Self>, event: Bytes) -> Option<QueuedEvent> {
        let length = event.len();
        let take = |taken: usize| taken.checked_add(length).filter(|sum| *sum <= self.limit);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(QueuedEvent { event, budget: Arc::clone(self) })
    }
}

/// An event and its share of the budget.
pub struct QueuedEvent {
    pub event: Bytes,
    budget: Arc<Budget>,
}

impl Drop for QueuedEvent {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.event.len(), Ordering::Relaxed);
    }
}

/// Encodes an EventList.
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
    fn event_list_is_valid_json() {
        let one = Bytes::from_static(b"{\"level\":\"Metadata\"}");
        let other = Bytes::from_static(b"{\"a\":1}");
        let text = list([&one, &other].into_iter());
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(value["kind"], "EventList");
        assert_eq!(value["items"], json!([{"level": "Metadata"}, {"a": 1}]));
    }

    #[test]
    fn budget_is_released_on_drop() {
        let budget = Arc::new(Budget::new(10));
        let first = budget.hold(Bytes::from_static(b"1234567")).expect("room");
        assert!(budget.hold(Bytes::from_static(b"1234")).is_none());
        drop(first);
        assert!(budget.hold(Bytes::from_static(b"1234")).is_some());
    }
}
