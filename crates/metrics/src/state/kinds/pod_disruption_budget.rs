//! PodDisruptionBudgets.

use super::*;
use crate::state::family::{CREATED, DELETED, Kind, Source, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "poddisruptionbudgets",
    kind: "PodDisruptionBudget",
    path: "/apis/policy/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("poddisruptionbudget", NAME)],
    families: &[
        alpha("kube_poddisruptionbudget_annotations", ANNOTATIONS_HELP, Source::Annotations),
        alpha("kube_poddisruptionbudget_labels", LABELS_HELP, Source::Labels),
        stable("kube_poddisruptionbudget_created", CREATED_HELP, CREATED),
        stable(
            "kube_poddisruptionbudget_status_current_healthy",
            "Number of healthy pods.",
            Source::Number("status.currentHealthy"),
        ),
        stable(
            "kube_poddisruptionbudget_status_desired_healthy",
            "Smallest desired number of healthy pods.",
            Source::Number("status.desiredHealthy"),
        ),
        stable(
            "kube_poddisruptionbudget_status_pod_disruptions_allowed",
            "Number of disruptions that are allowed now.",
            Source::Number("status.disruptionsAllowed"),
        ),
        stable(
            "kube_poddisruptionbudget_status_expected_pods",
            "Number of pods that the budget counts.",
            Source::Number("status.expectedPods"),
        ),
        stable(
            "kube_poddisruptionbudget_status_observed_generation",
            "Generation that the controller has observed.",
            Source::Number("status.observedGeneration"),
        ),
        alpha("kube_poddisruptionbudget_deletion_timestamp", DELETED_HELP, DELETED),
    ],
};
