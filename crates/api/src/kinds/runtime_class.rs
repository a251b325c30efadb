//! RuntimeClass.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", Scope::Cluster) };
