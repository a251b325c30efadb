//! Shared informers: one watch and one cache per kind.

mod cache;
mod core;
mod reflector;

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use base::tasks::TaskGroup;
use client::{Client, Collection, Object, PartialObject, ResourceKey};
use objects::DecodeShared;
use parking_lot::Mutex;

pub use cache::{Cache, Change};
use core::Core;

/// Selection of objects that an informer watches; by default all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Empty for all.
    pub namespace: String,
    pub label_selector: String,
    pub field_selector: String,
}

impl Selection {
    #[must_use]
    pub fn by_field(selector: impl Into<String>) -> Self {
        Self { field_selector: selector.into(), ..Self::default() }
    }
}

type Name = (TypeId, Collection, Selection);

/// Informers of one client. Clones share them.
///
/// ```no_run
/// use objects::core::v1::Pod;
/// use runtime::Informers;
///
/// # fn watch(client: client::Client, tasks: &base::tasks::TaskGroup) {
/// let pods = Informers::new(client, tasks).of::<Pod>();
/// pods.on_event(|change| println!("{:?}", change.object().metadata.name));
/// println!("{} pods in default", pods.list("default").len());
/// # }
/// ```
#[derive(Clone)]
pub struct Informers {
    client: Client,
    tasks: TaskGroup,
    running: Arc<Mutex<HashMap<Name, Running>>>,
}

struct Running {
    cache: Arc<Core>,
    tasks: TaskGroup,
}

/// Sync state of the informers of typed resources, which it does not keep alive.
#[derive(Clone)]
pub struct SyncStatus(Weak<Mutex<HashMap<Name, Running>>>);

impl SyncStatus {
    /// Fails while a cache has not been filled. Passes if the informers have ended.
    pub fn check(&self) -> Result<(), String> {
        let Some(running) = self.0.upgrade() else { return Ok(()) };
        let running = running.lock();
        // Metadata is watched of whatever discovery lists, also of resources that are removed meanwhile.
        let typed = running.iter().filter(|((kind, ..), _)| *kind != TypeId::of::<PartialObject>());
        let mut missing: Vec<String> = typed
            .filter(|(_, informer)| !informer.cache.is_synced())
            .map(|((_, collection, _), _)| collection.path().to_owned())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort();
        Err(format!("{} informers not started yet: {missing:?}", missing.len()))
    }
}

impl Informers {
    /// Sync state, for health checks.
    #[must_use]
    pub fn sync_status(&self) -> SyncStatus {
        SyncStatus(Arc::downgrade(&self.running))
    }

    /// Informers that run in `tasks`.
    #[must_use]
    pub fn new(client: Client, tasks: &TaskGroup) -> Self {
        Self { client, tasks: tasks.child(), running: Arc::default() }
    }

    /// Cache of all objects of a kind. The first call starts its watch.
    #[must_use]
    pub fn of<K: Object>(&self) -> Cache<K> {
        self.of_selected(Selection::default())
    }

    /// Cache of a selection of objects of a kind, such as the pods of one node.
    #[must_use]
    pub fn of_selected<K: Object>(&self, selection: Selection) -> Cache<K> {
        self.follow(Collection::of::<K>(&selection.namespace), selection)
    }

    /// Metadata of all objects of a resource.
    #[must_use]
    pub fn metadata_of(&self, resource: &ResourceKey) -> Cache<PartialObject> {
        self.follow(Collection::metadata_of(resource), Selection::default())
    }

    /// Ends the watch of [`Informers::metadata_of`]: the resource is no longer served.
    pub fn forget_metadata(&self, resource: &ResourceKey) {
        let name = (TypeId::of::<PartialObject>(), Collection::metadata_of(resource), Selection::default());
        if let Some(running) = self.running.lock().remove(&name) {
            running.tasks.stop();
        }
    }

    fn follow<K: Object>(&self, collection: Collection, selection: Selection) -> Cache<K> {
        Cache::over(self.start(TypeId::of::<K>(), collection, selection, K::decode_shared))
    }

    /// Starts the reflector of a collection, unless it runs.
    fn start(
        &self,
        kind: TypeId,
        collection: Collection,
        selection: Selection,
        decode: DecodeShared,
    ) -> Arc<Core> {
        let name = (kind, collection.clone(), selection.clone());
        let mut running = self.running.lock();
        if let Some(known) = running.get(&name) {
            return Arc::clone(&known.cache);
        }
        let cache = Arc::new(Core::supervised(self.tasks.supervision().clone()));
        // Its tasks are drained with the others; it can also stop alone.
        let tasks = self.tasks.scope();
        let (client, filled) = (self.client.clone(), Arc::clone(&cache));
        tasks.supervise_until_stopped(format!("reflector {}", collection.path()), move || {
            let cache = Arc::clone(&filled);
            let reflector = reflector::Reflector::new(
                client.clone(),
                collection.clone(),
                selection.clone(),
                cache,
                decode,
            );
            reflector.run()
        });
        running.insert(name, Running { cache: Arc::clone(&cache), tasks });
        cache
    }
}
