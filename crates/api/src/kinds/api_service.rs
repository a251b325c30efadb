//! APIService.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("apiregistration.k8s.io", "v1", "APIService", "apiservices", Scope::Cluster) };
