//! Other objects that plugins read: volumes and their classes, services and owners, budgets, namespaces.

use std::collections::HashMap;
use std::sync::Arc;

use objects::Metadata;
use objects::apps::v1::{ReplicaSet, StatefulSet};
use objects::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service};
use objects::meta::v1::ObjectMeta;
use objects::policy::v1::PodDisruptionBudget;
use objects::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use super::counts::NamespaceLabels;
use super::labels::Labels;

#[derive(Debug)]
struct CachedObject<K> {
    object: Arc<K>,
    /// Assumed version after a decision of this scheduler, until the API server sends another version.
    assumed: Option<Arc<K>>,
}

impl<K> CachedObject<K> {
    fn current(&self) -> &Arc<K> {
        self.assumed.as_ref().unwrap_or(&self.object)
    }
}

/// Objects of one kind by namespace and name.
#[derive(Debug)]
pub struct Table<K> {
    by_namespace: HashMap<String, HashMap<String, CachedObject<K>>>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { by_namespace: HashMap::new() }
    }
}

impl<K: Metadata<Ty = ObjectMeta>> Table<K> {
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.by_namespace.get(namespace)?.get(name).map(CachedObject::current)
    }

    pub fn list(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        self.by_namespace.get(namespace).into_iter().flat_map(HashMap::values).map(CachedObject::current)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.by_namespace.values().flat_map(HashMap::values).map(CachedObject::current)
    }

    pub fn set(&mut self, object: Arc<K>) {
        let metadata = object.metadata();
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let name = metadata.name.clone().unwrap_or_default();
        let names = self.by_namespace.entry(namespace).or_default();
        // The version that an assumption was based on does not revoke it.
        let assumed = names
            .remove(&name)
            .filter(|cached| cached.object.metadata().resource_version == metadata.resource_version);
        names.insert(name, CachedObject { object, assumed: assumed.and_then(|cached| cached.assumed) });
    }

    /// Uses `assumed` as the object's current version.
    pub fn assume(&mut self, assumed: Arc<K>) {
        if let Some(cached) = self.cached(assumed.metadata()) {
            cached.assumed = Some(assumed);
        }
    }

    pub fn restore(&mut self, metadata: &ObjectMeta) {
        if let Some(cached) = self.cached(metadata) {
            cached.assumed = None;
        }
    }

    fn cached(&mut self, metadata: &ObjectMeta) -> Option<&mut CachedObject<K>> {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        self.by_namespace.get_mut(namespace)?.get_mut(metadata.name.as_deref().unwrap_or_default())
    }

    pub fn remove(&mut self, object: &K) {
        let metadata = object.metadata();
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let Some(names) = self.by_namespace.get_mut(namespace) else { return };
        names.remove(metadata.name.as_deref().unwrap_or_default());
        if names.is_empty() {
            self.by_namespace.remove(namespace);
        }
    }
}

#[derive(Debug, Default)]
pub struct Objects {
    pub claims: Table<PersistentVolumeClaim>,
    pub volumes: Table<PersistentVolume>,
    pub storage_classes: Table<StorageClass>,
    pub csi_nodes: Table<CSINode>,
    pub csi_drivers: Table<CSIDriver>,
    pub csi_capacities: Table<CSIStorageCapacity>,
    pub attachments: Table<VolumeAttachment>,
    pub services: Table<Service>,
    pub replication_controllers: Table<ReplicationController>,
    pub replica_sets: Table<ReplicaSet>,
    pub stateful_sets: Table<StatefulSet>,
    pub budgets: Table<PodDisruptionBudget>,
    namespaces: HashMap<String, Labels>,
}

impl Objects {
    /// Stores a namespace's labels; returns true if they changed.
    pub fn set_namespace(&mut self, namespace: &Namespace) -> bool {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let labels = Labels::of(namespace.metadata.labels.as_ref());
        if self.namespaces.get(&name) == Some(&labels) {
            return false;
        }
        self.namespaces.insert(name, labels);
        true
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }
}

impl NamespaceLabels for Objects {
    fn labels_of(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace)
    }
}
