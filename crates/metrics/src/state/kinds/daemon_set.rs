//! DaemonSets.

use super::*;
use crate::state::family::{CREATED, DELETED, GENERATION, Kind, Source, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "daemonsets",
    kind: "DaemonSet",
    path: "/apis/apps/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("daemonset", NAME)],
    families: &[
        stable("kube_daemonset_created", CREATED_HELP, CREATED),
        stable(
            "kube_daemonset_status_current_number_scheduled",
            "Number of nodes that run a daemon pod as they should.",
            Source::Number("status.currentNumberScheduled"),
        ),
        stable(
            "kube_daemonset_status_desired_number_scheduled",
            "Number of nodes that should run a daemon pod.",
            Source::Number("status.desiredNumberScheduled"),
        ),
        stable(
            "kube_daemonset_status_number_available",
            "Number of nodes that should run a daemon pod and have an available one.",
            Source::Number("status.numberAvailable"),
        ),
        stable(
            "kube_daemonset_status_number_misscheduled",
            "Number of nodes that run a daemon pod but should not.",
            Source::Number("status.numberMisscheduled"),
        ),
        stable(
            "kube_daemonset_status_number_ready",
            "Number of nodes that should run a daemon pod and have a ready one.",
            Source::Number("status.numberReady"),
        ),
        stable(
            "kube_daemonset_status_number_unavailable",
            "Number of nodes that should run a daemon pod and have no available one.",
            Source::Number("status.numberUnavailable"),
        ),
        stable(
            "kube_daemonset_status_observed_generation",
            "Generation that the controller has observed.",
            Source::Number("status.observedGeneration"),
        ),
        stable(
            "kube_daemonset_status_updated_number_scheduled",
            "Number of nodes that run an updated daemon pod.",
            Source::Number("status.updatedNumberScheduled"),
        ),
        stable("kube_daemonset_metadata_generation", GENERATION_HELP, GENERATION),
        alpha("kube_daemonset_deletion_timestamp", DELETED_HELP, DELETED),
        alpha("kube_daemonset_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_daemonset_labels", LABELS_HELP, Source::Labels),
    ],
};
