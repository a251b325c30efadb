//! ResourceClaim.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    returns_deleted: true,
    ..Kind::new("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", Scope::Namespaced)
};
