//! Lease.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced) };
