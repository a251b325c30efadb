//! Secret.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "Secret", "secrets", Scope::Namespaced) };
