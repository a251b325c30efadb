//! PersistentVolumeClaim.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", Scope::Namespaced) };
