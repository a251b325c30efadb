//! Deployment.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced) };
