//! PodDisruptionBudget.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", Scope::Namespaced) };
