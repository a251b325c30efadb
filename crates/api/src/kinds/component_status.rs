//! ComponentStatus.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    deprecation: Some("v1 ComponentStatus is deprecated in v1.19+"),
    table: &crate::tables::config::COMPONENT_STATUS,
    ..Kind::new("", "v1", "ComponentStatus", "componentstatuses", Scope::Cluster)
};
