//! CSINode.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    returns_deleted: true,
    ..Kind::new("storage.k8s.io", "v1", "CSINode", "csinodes", Scope::Cluster)
};
