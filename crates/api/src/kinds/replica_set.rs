//! ReplicaSet.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("apps", "v1", "ReplicaSet", "replicasets", Scope::Namespaced) };
