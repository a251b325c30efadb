//! EndpointSlice.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", Scope::Namespaced) };
