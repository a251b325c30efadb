//! IPAddress.

use crate::{Kind, Scope};

pub static KIND: Kind =
    Kind { ..Kind::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses", Scope::Cluster) };
