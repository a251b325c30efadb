//! The stores of an API server: one for all resources, and others for some of them (`--etcd-servers-overrides`).

use std::sync::Arc;
use store::Store;

/// The store of each resource.
#[derive(Clone)]
pub struct Stores {
    pub main: Arc<dyn Store>,
    pub overrides: Vec<StoreOverride>,
}

/// Another store for a built-in resource.
#[derive(Clone)]
pub struct StoreOverride {
    pub group: String,
    pub resource: String,
    pub store: Arc<dyn Store>,
}

impl From<Arc<dyn Store>> for Stores {
    fn from(main: Arc<dyn Store>) -> Self {
        Self { main, overrides: Vec::new() }
    }
}

impl Stores {
    /// The store of a built-in resource.
    pub fn of(&self, group: &str, resource: &str) -> &Arc<dyn Store> {
        let own = self.overrides.iter().find(|own| own.group == group && own.resource == resource);
        own.map_or(&self.main, |own| &own.store)
    }

    /// The stores besides the main one, each once.
    pub fn others(&self) -> Vec<&Arc<dyn Store>> {
        let mut others: Vec<&Arc<dyn Store>> = Vec::new();
        for own in &self.overrides {
            if !others.iter().any(|other| Arc::ptr_eq(other, &own.store)) {
                others.push(&own.store);
            }
        }
        others
    }
}
