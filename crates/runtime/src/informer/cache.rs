//! Typed view of a cache: reads, indexes and handlers of one kind.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use objects::{AnyObject, Object, Shared, downcast};

use super::core::{Core, Which};
use crate::Key;

/// A change of an object.
pub enum Change<K: ?Sized> {
    Added(Arc<K>),
    Updated {
        old: Arc<K>,
        new: Arc<K>,
    },
    /// With the last observed state.
    Deleted(Arc<K>),
}

impl<K: ?Sized> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Added(object) => Self::Added(Arc::clone(object)),
            Self::Updated { old, new } => Self::Updated { old: Arc::clone(old), new: Arc::clone(new) },
            Self::Deleted(object) => Self::Deleted(Arc::clone(object)),
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for Change<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added(object) => f.debug_tuple("Added").field(object).finish(),
            Self::Updated { old, new } => {
                f.debug_struct("Updated").field("old", old).field("new", new).finish()
            }
            Self::Deleted(object) => f.debug_tuple("Deleted").field(object).finish(),
        }
    }
}

impl<K: ?Sized> Change<K> {
    /// Current object, or its last state.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Deleted(object) | Self::Updated { new: object, .. } => object,
        }
    }

    /// Object before the change.
    pub fn old(&self) -> Option<&Arc<K>> {
        match self {
            Self::Updated { old, .. } => Some(old),
            _ => None,
        }
    }
}

impl Change<dyn AnyObject> {
    fn typed<K: Object>(&self) -> Option<Change<K>> {
        Some(match self {
            Self::Added(object) => Change::Added(downcast(object)?),
            Self::Updated { old, new } => Change::Updated { old: downcast(old)?, new: downcast(new)? },
            Self::Deleted(object) => Change::Deleted(downcast(object)?),
        })
    }
}

/// Objects of a kind. Clones share them.
pub struct Cache<K> {
    core: Arc<Core>,
    /// Every object in `core` is of this kind.
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self::over(Arc::clone(&self.core))
    }
}

impl<K> Cache<K> {
    pub(super) fn over(core: Arc<Core>) -> Self {
        Self { core, kind: PhantomData }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl<K: Object> Default for Cache<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Object> Cache<K> {
    /// Empty cache without an informer, for tests.
    #[must_use]
    pub fn new() -> Self {
        Self::over(Arc::new(Core::new()))
    }

    #[must_use]
    pub fn get(&self, ns: &str, name: &str) -> Option<Arc<K>> {
        let found = self.core.get(ns, name);
        crate::reconciliation::read::<K>(ns, name, || {
            found.as_ref()?.meta().resource_version.as_deref()?.parse().ok()
        });
        downcast(&found?)
    }

    #[must_use]
    pub fn get_key(&self, key: &Key) -> Option<Arc<K>> {
        self.get(&key.namespace, &key.name)
    }

    /// Objects of a namespace, by name.
    #[must_use]
    pub fn list(&self, ns: &str) -> Vec<Arc<K>> {
        self.collect(Which::Namespace(ns))
    }

    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.collect(Which::All)
    }

    /// Number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.core.count()
    }

    /// Objects with an owner reference to this uid, controlling or not.
    #[must_use]
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.collect(Which::Owner(uid))
    }

    /// Objects for which the function of `index` returned `value`; empty if there is no such index.
    #[must_use]
    pub fn indexed(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        self.collect(Which::Indexed { index, value })
    }

    /// Adds an index by the values that `values` returns for each object; the first of a name stays.
    pub fn add_index(&self, name: &'static str, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        let values =
            move |object: &Shared| downcast::<K>(object).map(|object| values(&object)).unwrap_or_default();
        self.core.add_index(name, Box::new(values));
    }

    /// Calls `handler` for every existing object and every later change, sequentially and in order. It must not block
    /// nor add handlers; it may read this cache, which is at least as new as the change.
    pub fn on_event(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.core.on_event(Box::new(move |change| {
            if let Some(change) = change.typed() {
                handler(&change);
            }
        }));
    }

    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.core.is_synced()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as the cache.
        let _ = self.core.synced().wait_for(|synced| *synced).await;
    }

    /// Stores an object as returned by the API server. For tests; informers write to the core.
    pub fn apply(&self, object: K) {
        self.core.apply(shared(object));
    }

    /// Removes an object.
    pub fn remove(&self, object: K) {
        self.core.remove(shared(object));
    }

    /// Replaces the content of the cache with `all`.
    pub fn replace(&self, all: Vec<K>) {
        self.core.replace(all.into_iter().map(shared).collect());
    }

    fn collect(&self, which: Which<'_>) -> Vec<Arc<K>> {
        let mut found = Vec::new();
        self.core.visit(which, &mut |object| found.extend(downcast::<K>(object)));
        found
    }
}

/// Removes `managedFields`: they are large and no loop reads them.
fn shared<K: Object>(mut object: K) -> Shared {
    object.metadata_mut().managed_fields = None;
    Arc::new(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::core::v1::Pod;
    use objects::meta::v1::{ManagedFieldsEntry, OwnerReference};
    use parking_lot::Mutex;

    fn pod(name: &str, rv: u32, node: &str, owner: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("n".to_owned());
        pod.metadata.uid = Some(format!("uid-{name}"));
        pod.metadata.resource_version = Some(rv.to_string());
        pod.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        if !owner.is_empty() {
            let owner = OwnerReference { uid: owner.to_owned(), ..OwnerReference::default() };
            pod.metadata.owner_references = Some(vec![owner]);
        }
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        pod
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.metadata.name.as_deref().unwrap_or_default()).collect()
    }

    #[test]
    fn cache_index_follows_object_changes() {
        let cache = Cache::new();
        cache.apply(pod("a", 1, "x", "o"));
        cache.add_index("node", |pod: &Pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).into_iter().collect()
        });
        cache.apply(pod("b", 2, "x", ""));
        assert_eq!(names(&cache.indexed("node", "x")), ["a", "b"]);
        cache.apply(pod("a", 3, "y", "p"));
        assert_eq!(names(&cache.indexed("node", "x")), ["b"]);
        assert_eq!(names(&cache.indexed("node", "y")), ["a"]);
        assert!(cache.owned_by("o").is_empty());
        assert_eq!(names(&cache.owned_by("p")), ["a"]);
        assert_eq!(names(&cache.list("n")), ["a", "b"]);
        assert_eq!(cache.get("n", "a").expect("there").metadata.managed_fields, None);
        cache.remove(pod("a", 4, "y", "p"));
        assert_eq!((cache.count(), cache.all().len()), (1, 1));
        assert!(cache.owned_by("p").is_empty() && cache.indexed("node", "y").is_empty());
    }

    #[test]
    fn cache_handlers_are_called_once_per_change() {
        let cache = Cache::new();
        cache.apply(pod("a", 1, "x", ""));
        let events = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&events);
        cache.on_event(move |change: &Change<Pod>| {
            let what = match change {
                Change::Added(_) => "+",
                Change::Updated { .. } => "~",
                Change::Deleted(_) => "-",
            };
            log.lock()
                .push(format!("{what}{}", change.object().metadata.name.as_deref().unwrap_or_default()));
        });
        cache.apply(pod("a", 1, "x", ""));
        cache.apply(pod("a", 2, "x", ""));
        assert!(!cache.is_synced());
        cache.replace(vec![pod("a", 2, "x", ""), pod("b", 3, "x", "")]);
        assert!(cache.is_synced());
        cache.replace(vec![pod("b", 3, "x", "")]);
        cache.remove(pod("c", 9, "x", ""));
        assert_eq!(*events.lock(), ["+a", "~a", "+b", "-a"]);
    }
}
