//! Node.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "Node", "nodes", Scope::Cluster) };
