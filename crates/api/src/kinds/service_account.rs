//! ServiceAccount.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("", "v1", "ServiceAccount", "serviceaccounts", Scope::Namespaced) };
