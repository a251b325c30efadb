//! ReplicationControllers.

use super::*;
use crate::state::family::{CREATED, GENERATION, Kind, Source, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "replicationcontrollers",
    kind: "ReplicationController",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("replicationcontroller", NAME)],
    families: &[
        stable("kube_replicationcontroller_created", CREATED_HELP, CREATED),
        stable(
            "kube_replicationcontroller_status_replicas",
            "Number of pods.",
            Source::Number("status.replicas"),
        ),
        stable(
            "kube_replicationcontroller_status_fully_labeled_replicas",
            "Number of pods with all labels of the template.",
            Source::Number("status.fullyLabeledReplicas"),
        ),
        stable(
            "kube_replicationcontroller_status_ready_replicas",
            "Number of ready pods.",
            Source::Number("status.readyReplicas"),
        ),
        stable(
            "kube_replicationcontroller_status_available_replicas",
            "Number of available pods.",
            Source::Number("status.availableReplicas"),
        ),
        stable(
            "kube_replicationcontroller_status_observed_generation",
            "Generation that the controller has observed.",
            Source::Number("status.observedGeneration"),
        ),
        stable(
            "kube_replicationcontroller_spec_replicas",
            "Number of desired pods.",
            Source::Given("spec.replicas"),
        ),
        stable("kube_replicationcontroller_metadata_generation", GENERATION_HELP, GENERATION),
        alpha("kube_replicationcontroller_owner", OWNER_HELP, Source::Owners),
    ],
};
