//! Service.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "Service", "services", Scope::Namespaced) };
