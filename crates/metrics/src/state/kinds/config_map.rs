//! ConfigMaps; their contents have no series.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "configmaps",
    kind: "ConfigMap",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("configmap", NAME)],
    families: &[
        alpha("kube_configmap_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_configmap_labels", LABELS_HELP, Source::Labels),
        stable("kube_configmap_info", "A ConfigMap exists.", Source::One),
        stable("kube_configmap_created", CREATED_HELP, CREATED),
        alpha("kube_configmap_metadata_resource_version", VERSION_HELP, Source::ResourceVersion),
    ],
};
