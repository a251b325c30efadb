//! ResourceQuota.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "ResourceQuota", "resourcequotas", Scope::Namespaced) };
