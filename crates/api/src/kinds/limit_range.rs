//! LimitRange.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "LimitRange", "limitranges", Scope::Namespaced) };
