//! Namespaces.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "namespaces",
    kind: "Namespace",
    path: "/api/v1",
    is_namespaced: false,
    identity: &[("namespace", NAME)],
    families: &[
        stable("kube_namespace_created", CREATED_HELP, CREATED),
        alpha("kube_namespace_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_namespace_labels", LABELS_HELP, Source::Labels),
        stable(
            "kube_namespace_status_phase",
            "Phase of a namespace.",
            Source::OneOf("phase", "status.phase", &["Active", "Terminating"]),
        ),
        alpha("kube_namespace_status_condition", "Conditions of a namespace.", Source::Conditions),
    ],
};
