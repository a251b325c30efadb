//! ResourceSlice.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", Scope::Cluster) };
