//! ReplicationController.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("", "v1", "ReplicationController", "replicationcontrollers", Scope::Namespaced) };
