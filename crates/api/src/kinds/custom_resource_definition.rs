//! CustomResourceDefinition.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    ..Kind::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Scope::Cluster,
    )
};
