//! Kind-independent part of a cache: objects, indexes, handlers. Compiled once for all kinds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::tasks::{Supervision, panic_message};
use objects::Shared;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::Change;
use crate::Key;

/// Component name for counting panics of handlers.
const HANDLER: &str = "event-handler";

type Handler = Box<dyn Fn(&Change<dyn objects::AnyObject>) + Send + Sync>;
type Values = Box<dyn Fn(&Shared) -> Vec<String> + Send + Sync>;

/// Type-erased objects of one kind: one writer, many readers.
pub struct Core {
    objects: RwLock<Objects>,
    /// Held by the writer from a change to its last handler, so that a new handler misses nothing.
    handlers: Mutex<Vec<Handler>>,
    synced: watch::Sender<bool>,
    supervision: Supervision,
}

#[derive(Default)]
struct Objects {
    by_namespace: HashMap<Arc<str>, BTreeMap<Arc<str>, Shared>>,
    by_owner: Entries,
    indexes: HashMap<&'static str, Index>,
    count: usize,
}

type Entries = HashMap<String, BTreeMap<Key, Shared>>;

struct Index {
    values: Values,
    entries: Entries,
}

/// Selection of objects to visit.
#[derive(Clone, Copy)]
pub enum Which<'a> {
    All,
    Namespace(&'a str),
    /// Objects with an owner reference to this uid.
    Owner(&'a str),
    /// Objects for which the function of an index returned a value.
    Indexed {
        index: &'a str,
        value: &'a str,
    },
}

impl Core {
    pub fn new() -> Self {
        Self::supervised(Supervision::default())
    }

    /// Cache that counts the panics of its handlers.
    pub fn supervised(supervision: Supervision) -> Self {
        let (synced, _) = watch::channel(false);
        Self { objects: RwLock::default(), handlers: Mutex::new(Vec::new()), synced, supervision }
    }

    pub fn get(&self, ns: &str, name: &str) -> Option<Shared> {
        self.objects.read().by_namespace.get(ns).and_then(|names| names.get(name)).cloned()
    }

    pub fn count(&self) -> usize {
        self.objects.read().count
    }

    pub fn visit(&self, which: Which<'_>, visit: &mut dyn FnMut(&Shared)) {
        let objects = self.objects.read();
        match which {
            Which::All => objects.by_namespace.values().flat_map(BTreeMap::values).for_each(visit),
            Which::Namespace(ns) => {
                objects.by_namespace.get(ns).into_iter().flat_map(BTreeMap::values).for_each(visit);
            }
            Which::Owner(uid) => {
                objects.by_owner.get(uid).into_iter().flat_map(BTreeMap::values).for_each(visit);
            }
            Which::Indexed { index, value } => {
                let found = objects.indexes.get(index).and_then(|index| index.entries.get(value));
                found.into_iter().flat_map(BTreeMap::values).for_each(visit);
            }
        }
    }

    /// Adds an index; the first of a name stays.
    pub fn add_index(&self, name: &'static str, values: Values) {
        let mut objects = self.objects.write();
        if objects.indexes.contains_key(name) {
            return;
        }
        let mut index = Index { values, entries: HashMap::new() };
        for object in objects.by_namespace.values().flat_map(BTreeMap::values) {
            index.insert(&Key::of_meta(object.meta()), object);
        }
        objects.indexes.insert(name, index);
    }

    pub fn on_event(&self, handler: Handler) {
        let mut handlers = self.handlers.lock();
        let handler = [handler];
        for object in self.all() {
            self.notify(&handler, &Change::Added(object));
        }
        handlers.extend(handler);
    }

    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    pub fn apply(&self, object: Shared) {
        let handlers = self.handlers.lock();
        self.put(object, &handlers);
    }

    pub fn remove(&self, object: Shared) {
        let handlers = self.handlers.lock();
        let removed = self.objects.write().remove(&Key::of_meta(object.meta()));
        if removed.is_some() {
            let change = Change::Deleted(object);
            self.notify(&handlers, &change);
        }
    }

    /// Calls every handler. A panic affects neither the other handlers nor the watch.
    fn notify(&self, handlers: &[Handler], change: &Change<dyn objects::AnyObject>) {
        for handler in handlers {
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler(change))) else { continue };
            self.supervision.count_panic(HANDLER);
            let key = Key::of_meta(change.object().meta());
            tracing::error!(%key, panic = panic_message(&*panic), "event handler panicked");
        }
    }

    pub fn replace(&self, all: Vec<Shared>) {
        let handlers = self.handlers.lock();
        let keys: HashSet<Key> = all.iter().map(|object| Key::of_meta(object.meta())).collect();
        for object in self.all() {
            let key = Key::of_meta(object.meta());
            if !keys.contains(&key) {
                self.objects.write().remove(&key);
                self.notify(&handlers, &Change::Deleted(Arc::clone(&object)));
            }
        }
        for object in all {
            self.put(object, &handlers);
        }
        self.synced.send_replace(true);
    }

    fn all(&self) -> Vec<Shared> {
        let mut all = Vec::with_capacity(self.count());
        self.visit(Which::All, &mut |object| all.push(Arc::clone(object)));
        all
    }

    fn put(&self, object: Shared, handlers: &[Handler]) {
        let key = Key::of_meta(object.meta());
        let mut objects = self.objects.write();
        let old = objects.remove(&key);
        objects.insert(&key, &object);
        drop(objects);
        let notify = |change: &Change<_>| self.notify(handlers, change);
        match old {
            None => notify(&Change::Added(object)),
            // A relist repeats known objects.
            Some(old) if same(&old, &object) => {}
            // Deleted and created again while the watch was interrupted.
            Some(old) if old.meta().uid != object.meta().uid => {
                notify(&Change::Deleted(old));
                notify(&Change::Added(object));
            }
            Some(old) => notify(&Change::Updated { old, new: object }),
        }
    }
}

fn same(old: &Shared, new: &Shared) -> bool {
    let (old, new) = (old.meta(), new.meta());
    old.uid == new.uid && old.resource_version.is_some() && old.resource_version == new.resource_version
}

impl Objects {
    fn insert(&mut self, key: &Key, object: &Shared) {
        let names = self.by_namespace.entry(Arc::clone(&key.namespace)).or_default();
        if names.insert(Arc::clone(&key.name), Arc::clone(object)).is_none() {
            self.count += 1;
        }
        for owner in object.meta().owner_references.iter().flatten() {
            self.by_owner.entry(owner.uid.clone()).or_default().insert(key.clone(), Arc::clone(object));
        }
        for index in self.indexes.values_mut() {
            index.insert(key, object);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Shared> {
        let names = self.by_namespace.get_mut(&key.namespace)?;
        let object = names.remove(&key.name)?;
        if names.is_empty() {
            self.by_namespace.remove(&key.namespace);
        }
        self.count -= 1;
        for owner in object.meta().owner_references.iter().flatten() {
            remove_entry(&mut self.by_owner, &owner.uid, key);
        }
        for index in self.indexes.values_mut() {
            for value in (index.values)(&object) {
                remove_entry(&mut index.entries, &value, key);
            }
        }
        Some(object)
    }
}

impl Index {
    fn insert(&mut self, key: &Key, object: &Shared) {
        for value in (self.values)(object) {
            self.entries.entry(value).or_default().insert(key.clone(), Arc::clone(object));
        }
    }
}

fn remove_entry(entries: &mut Entries, value: &str, key: &Key) {
    if let Some(entry) = entries.get_mut(value) {
        entry.remove(key);
        if entry.is_empty() {
            entries.remove(value);
        }
    }
}
