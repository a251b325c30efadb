//! PriorityLevelConfiguration.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    ..Kind::new(
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
        Scope::Cluster,
    )
};
