//! The cache of one kind: one writer, many readers, indexes, and those who want to hear of changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use client::Object;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::Key;

/// What happened to an object.
#[derive(Clone, Debug)]
pub enum Change<K> {
    Added(Arc<K>),
    Updated {
        old: Arc<K>,
        new: Arc<K>,
    },
    /// With the last state seen.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The object as it is, or as it was last.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Deleted(object) | Self::Updated { new: object, .. } => object,
        }
    }

    /// The object before the change.
    pub fn old(&self) -> Option<&Arc<K>> {
        match self {
            Self::Updated { old, .. } => Some(old),
            _ => None,
        }
    }
}

type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
type Values<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// The objects of a kind. Clones share them.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<K> {
    objects: RwLock<Objects<K>>,
    /// Held by the writer from a change to its last handler, so that a new handler misses nothing.
    handlers: Mutex<Vec<Handler<K>>>,
    synced: watch::Sender<bool>,
}

struct Objects<K> {
    by_namespace: HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<K>>>,
    by_owner: HashMap<String, BTreeMap<Key, Arc<K>>>,
    indexes: HashMap<&'static str, Index<K>>,
    count: usize,
}

struct Index<K> {
    values: Values<K>,
    entries: HashMap<String, BTreeMap<Key, Arc<K>>>,
}

impl<K: Object> Default for Cache<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Object> Cache<K> {
    /// An empty cache that nobody fills: what tests need.
    #[must_use]
    pub fn new() -> Self {
        let objects = Objects {
            by_namespace: HashMap::new(),
            by_owner: HashMap::new(),
            indexes: HashMap::new(),
            count: 0,
        };
        let (synced, _) = watch::channel(false);
        let shared = Shared { objects: RwLock::new(objects), handlers: Mutex::new(Vec::new()), synced };
        Self { shared: Arc::new(shared) }
    }

    #[must_use]
    pub fn get(&self, ns: &str, name: &str) -> Option<Arc<K>> {
        let found =
            self.shared.objects.read().by_namespace.get(ns).and_then(|names| names.get(name)).cloned();
        crate::pass::read::<K>(ns, name, || {
            found.as_ref()?.metadata().resource_version.as_deref()?.parse().ok()
        });
        found
    }

    #[must_use]
    pub fn get_key(&self, key: &Key) -> Option<Arc<K>> {
        self.get(&key.namespace, &key.name)
    }

    /// The objects of a namespace, by name.
    #[must_use]
    pub fn list(&self, ns: &str) -> Vec<Arc<K>> {
        let objects = self.shared.objects.read();
        objects.by_namespace.get(ns).map(|names| names.values().cloned().collect()).unwrap_or_default()
    }

    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        let objects = self.shared.objects.read();
        objects.by_namespace.values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.objects.read().count
    }

    /// The objects that name an owner with this uid, controlling or not.
    #[must_use]
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        let objects = self.shared.objects.read();
        objects.by_owner.get(uid).map(|owned| owned.values().cloned().collect()).unwrap_or_default()
    }

    /// The objects for which the function of `index` gave `value`; none if there is no such index.
    #[must_use]
    pub fn indexed(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let objects = self.shared.objects.read();
        let found = objects.indexes.get(index).and_then(|index| index.entries.get(value));
        found.map(|found| found.values().cloned().collect()).unwrap_or_default()
    }

    /// Keeps an index by what `values` gives for each object; the first of a name stays.
    pub fn add_index(&self, name: &'static str, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        let mut objects = self.shared.objects.write();
        if objects.indexes.contains_key(name) {
            return;
        }
        let mut index = Index { values: Box::new(values), entries: HashMap::new() };
        for object in objects.by_namespace.values().flat_map(BTreeMap::values) {
            index.insert(&Key::of(&**object), object);
        }
        objects.indexes.insert(name, index);
    }

    /// Calls `handler` for every object there is, and for every change from now on, one at a time and in order. It
    /// must not block, nor add handlers; it may read this cache, which is at least as new as the change.
    pub fn on_event(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let mut handlers = self.shared.handlers.lock();
        for object in self.all() {
            handler(&Change::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until the cache has once held everything there is.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives as long as the cache.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Puts an object in, as the API server gave it. An informer does this; tests may.
    pub fn apply(&self, object: K) {
        let handlers = self.shared.handlers.lock();
        self.put(object, &handlers);
    }

    /// Takes an object out.
    pub fn remove(&self, object: K) {
        let handlers = self.shared.handlers.lock();
        let key = Key::of(&object);
        let removed = self.shared.objects.write().remove(&key);
        if removed.is_some() {
            let change = Change::Deleted(Arc::new(stripped(object)));
            handlers.iter().for_each(|handler| handler(&change));
        }
    }

    /// Makes the cache hold exactly `all`.
    pub fn replace(&self, all: Vec<K>) {
        let handlers = self.shared.handlers.lock();
        let keys: std::collections::HashSet<Key> = all.iter().map(Key::of).collect();
        for object in self.all() {
            let key = Key::of(&*object);
            if !keys.contains(&key) {
                self.shared.objects.write().remove(&key);
                handlers.iter().for_each(|handler| handler(&Change::Deleted(Arc::clone(&object))));
            }
        }
        for object in all {
            self.put(object, &handlers);
        }
        self.shared.synced.send_replace(true);
    }

    fn put(&self, object: K, handlers: &[Handler<K>]) {
        let object = Arc::new(stripped(object));
        let key = Key::of(&*object);
        let mut objects = self.shared.objects.write();
        let old = objects.remove(&key);
        objects.insert(&key, &object);
        drop(objects);
        let tell = |change: &Change<K>| handlers.iter().for_each(|handler| handler(change));
        match old {
            None => tell(&Change::Added(object)),
            // A relist tells again what is known.
            Some(old) if same(&*old, &*object) => {}
            // Deleted and made anew while nobody watched.
            Some(old) if old.metadata().uid != object.metadata().uid => {
                tell(&Change::Deleted(old));
                tell(&Change::Added(object));
            }
            Some(old) => tell(&Change::Updated { old, new: object }),
        }
    }
}

fn same<K: Object>(old: &K, new: &K) -> bool {
    let (old, new) = (old.metadata(), new.metadata());
    old.uid == new.uid && old.resource_version.is_some() && old.resource_version == new.resource_version
}

/// Who set which field is large and of no use to a loop.
fn stripped<K: Object>(mut object: K) -> K {
    object.metadata_mut().managed_fields = None;
    object
}

impl<K: Object> Objects<K> {
    fn insert(&mut self, key: &Key, object: &Arc<K>) {
        let names = self.by_namespace.entry(Arc::clone(&key.namespace)).or_default();
        if names.insert(Arc::clone(&key.name), Arc::clone(object)).is_none() {
            self.count += 1;
        }
        for owner in object.metadata().owner_references.iter().flatten() {
            self.by_owner.entry(owner.uid.clone()).or_default().insert(key.clone(), Arc::clone(object));
        }
        for index in self.indexes.values_mut() {
            index.insert(key, object);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let names = self.by_namespace.get_mut(&key.namespace)?;
        let object = names.remove(&key.name)?;
        if names.is_empty() {
            self.by_namespace.remove(&key.namespace);
        }
        self.count -= 1;
        for owner in object.metadata().owner_references.iter().flatten() {
            take_out(&mut self.by_owner, &owner.uid, key);
        }
        for index in self.indexes.values_mut() {
            for value in (index.values)(&object) {
                take_out(&mut index.entries, &value, key);
            }
        }
        Some(object)
    }
}

impl<K: Object> Index<K> {
    fn insert(&mut self, key: &Key, object: &Arc<K>) {
        for value in (self.values)(object) {
            self.entries.entry(value).or_default().insert(key.clone(), Arc::clone(object));
        }
    }
}

fn take_out<K>(entries: &mut HashMap<String, BTreeMap<Key, Arc<K>>>, value: &str, key: &Key) {
    if let Some(entry) = entries.get_mut(value) {
        entry.remove(key);
        if entry.is_empty() {
            entries.remove(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};

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
    fn indexes_follow_the_objects() {
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
    fn handlers_hear_everything_once() {
        let cache = Cache::new();
        cache.apply(pod("a", 1, "x", ""));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
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
        assert_eq!(*heard.lock(), ["+a", "~a", "+b", "-a"]);
    }
}
