//! PersistentVolume.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("", "v1", "PersistentVolume", "persistentvolumes", Scope::Cluster) };
