//! Pod.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "Pod", "pods", Scope::Namespaced) };
