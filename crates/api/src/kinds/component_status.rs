//! ComponentStatus.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("", "v1", "ComponentStatus", "componentstatuses", Scope::Cluster) };
