//! Counts the watches that a write affects, because each has to be sent an event.

use crate::request_info::RequestInfo;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts watches by scope: a resource, a namespace of it, an object. Names are hashed: a collision only makes an
/// estimate less accurate.
#[derive(Debug, Default)]
pub struct Watches {
    hasher: RandomState,
    all: AtomicUsize,
    counts: Mutex<HashMap<u64, usize>>,
}

/// One counted watch, until dropped.
#[derive(Debug)]
pub struct Watched {
    watches: Arc<Watches>,
    what: u64,
}

impl Watches {
    /// Counts a watch. Those of one node's pods are not counted: a write seldom affects them.
    pub fn register(self: &Arc<Self>, info: &RequestInfo, field_selector: &str) -> Option<Watched> {
        if info.resource == "pods" && names_a_node(field_selector) {
            return None;
        }
        let what = self.hash(info, &info.namespace, &info.name);
        *self.counts.lock().entry(what).or_default() += 1;
        self.all.fetch_add(1, Ordering::Relaxed);
        Some(Watched { watches: self.clone(), what })
    }

    /// Number of watches that a write may affect.
    pub fn affected_by(&self, info: &RequestInfo) -> usize {
        if self.all.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut keys = [Some(self.hash(info, "", "")), None, None];
        if !info.namespace.is_empty() {
            keys[1] = Some(self.hash(info, &info.namespace, ""));
        }
        if !info.name.is_empty() {
            keys[2] = Some(self.hash(info, &info.namespace, &info.name));
        }
        let counts = self.counts.lock();
        keys.into_iter().flatten().filter_map(|key| counts.get(&key)).sum()
    }

    fn hash(&self, info: &RequestInfo, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((info.group.as_str(), info.resource.as_str(), namespace, name))
    }
}

fn names_a_node(field_selector: &str) -> bool {
    let value = field_selector.split(',').find_map(|part| {
        let value = part.trim().strip_prefix("spec.nodeName=")?;
        Some(value.strip_prefix('=').unwrap_or(value))
    });
    value.is_some_and(|value| !value.is_empty())
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut counts = self.watches.counts.lock();
        if let Some(count) = counts.get_mut(&self.what) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.what);
            }
        }
        self.watches.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(namespace: &str, name: &str) -> RequestInfo {
        RequestInfo {
            resource: "pods".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..RequestInfo::default()
        }
    }

    #[test]
    fn watch_count_includes_object_namespace_and_resource() {
        let watches = Arc::new(Watches::default());
        assert_eq!(watches.affected_by(&info("n", "p")), 0);
        let held: Vec<_> = [("", ""), ("n", ""), ("n", "p"), ("m", ""), ("n", "q")]
            .map(|(namespace, name)| watches.register(&info(namespace, name), ""))
            .into();
        assert!(watches.register(&info("", ""), "spec.nodeName=node-1").is_none());
        assert!(watches.register(&info("", ""), "spec.nodeName=").is_some());
        assert_eq!(watches.affected_by(&info("n", "p")), 3);
        assert_eq!(watches.affected_by(&info("n", "")), 2);
        drop(held);
        assert_eq!(watches.affected_by(&info("n", "p")), 0);
        assert!(watches.counts.lock().is_empty());
    }
}
