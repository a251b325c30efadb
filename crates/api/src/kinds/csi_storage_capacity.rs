//! CSIStorageCapacity.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    ..Kind::new("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", Scope::Namespaced)
};
