//! Namespace.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "Namespace", "namespaces", Scope::Cluster) };
