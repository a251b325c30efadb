//! VolumeAttributesClass.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    ..Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", Scope::Cluster)
};
