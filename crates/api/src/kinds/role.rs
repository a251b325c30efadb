//! Role.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("rbac.authorization.k8s.io", "v1", "Role", "roles", Scope::Namespaced) };
