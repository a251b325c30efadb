//! PriorityClass.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", Scope::Cluster) };
