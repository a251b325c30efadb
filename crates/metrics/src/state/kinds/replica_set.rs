//! ReplicaSets.

use super::*;
use crate::state::family::{CREATED, GENERATION, Kind, Source, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "replicasets",
    kind: "ReplicaSet",
    path: "/apis/apps/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("replicaset", NAME)],
    families: &[
        stable("kube_replicaset_created", CREATED_HELP, CREATED),
        stable("kube_replicaset_status_replicas", "Number of pods.", Source::Number("status.replicas")),
        stable(
            "kube_replicaset_status_fully_labeled_replicas",
            "Number of pods with all labels of the template.",
            Source::Number("status.fullyLabeledReplicas"),
        ),
        stable(
            "kube_replicaset_status_ready_replicas",
            "Number of ready pods.",
            Source::Number("status.readyReplicas"),
        ),
        alpha(
            "kube_replicaset_status_terminating_replicas",
            "Number of terminating pods.",
            Source::Given("status.terminatingReplicas"),
        ),
        stable(
            "kube_replicaset_status_observed_generation",
            "Generation that the controller has observed.",
            Source::Number("status.observedGeneration"),
        ),
        stable("kube_replicaset_spec_replicas", "Number of desired pods.", Source::Given("spec.replicas")),
        stable("kube_replicaset_metadata_generation", GENERATION_HELP, GENERATION),
        stable("kube_replicaset_owner", OWNER_HELP, Source::Owners),
        alpha("kube_replicaset_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_replicaset_labels", LABELS_HELP, Source::Labels),
    ],
};
