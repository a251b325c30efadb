//! Shared informers: one watch and one cache per kind.

mod cache;
mod core;
mod reflector;

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::Arc;

use base::tasks::TaskGroup;
use client::{Client, Collection, Object, PartialObject, ResourceKey};
use objects::DecodeShared;
use parking_lot::Mutex;

pub use cache::{Cache, Change};
use core::Core;

/// Which objects of a kind an informer follows; by default all.
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

/// The informers of one client. Clones share them.
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

impl Informers {
    /// Informers that run in `tasks`.
    #[must_use]
    pub fn new(client: Client, tasks: &TaskGroup) -> Self {
        Self { client, tasks: tasks.child(), running: Arc::default() }
    }

    /// The cache of all objects of a kind. The first call starts its watch.
    #[must_use]
    pub fn of<K: Object>(&self) -> Cache<K> {
        self.of_selected(Selection::default())
    }

    /// The cache of some objects of a kind, such as the pods of one node.
    #[must_use]
    pub fn of_selected<K: Object>(&self, selection: Selection) -> Cache<K> {
        self.follow(Collection::of::<K>(&selection.namespace), selection)
    }

    /// The metadata of all objects of a resource.
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

    /// Starts the reflector of a collection, unless there is one.
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
        // Its tasks are drained with the others; it may stop alone.
        let tasks = self.tasks.scope();
        let (client, scope, filled) = (self.client.clone(), tasks.clone(), Arc::clone(&cache));
        tasks.supervise(format!("reflector {}", collection.path()), move || {
            let (stopping, cache) = (scope.stopping(), Arc::clone(&filled));
            let reflector = reflector::Reflector::new(
                client.clone(),
                collection.clone(),
                selection.clone(),
                cache,
                decode,
            );
            async move {
                tokio::select! {
                    () = stopping => {}
                    () = reflector.run() => {}
                }
            }
        });
        running.insert(name, Running { cache: Arc::clone(&cache), tasks });
        cache
    }
}
