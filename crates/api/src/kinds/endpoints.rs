//! Endpoints.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "Endpoints", "endpoints", Scope::Namespaced) };
