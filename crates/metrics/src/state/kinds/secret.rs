//! Secrets; their contents have no series.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "secrets",
    kind: "Secret",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("secret", NAME)],
    families: &[
        stable("kube_secret_info", "A Secret exists.", Source::One),
        stable("kube_secret_type", "Type of a Secret.", Source::Info(&[("type", "type")])),
        alpha("kube_secret_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_secret_labels", LABELS_HELP, Source::Labels),
        stable("kube_secret_created", CREATED_HELP, CREATED),
        alpha("kube_secret_metadata_resource_version", VERSION_HELP, Source::ResourceVersion),
        alpha("kube_secret_owner", OWNER_HELP, Source::Owners),
    ],
};
