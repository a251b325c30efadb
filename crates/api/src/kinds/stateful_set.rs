//! StatefulSet.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("apps", "v1", "StatefulSet", "statefulsets", Scope::Namespaced) };
