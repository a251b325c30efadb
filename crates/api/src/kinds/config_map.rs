//! ConfigMap.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced) };
