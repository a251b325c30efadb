//! StatefulSets.

use super::*;
use crate::state::family::{CREATED, DELETED, GENERATION, Kind, Source, stable};
use crate::state::object::{at, number, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "statefulsets",
    kind: "StatefulSet",
    path: "/apis/apps/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("statefulset", NAME)],
    families: &[
        stable("kube_statefulset_created", CREATED_HELP, CREATED),
        stable("kube_statefulset_status_replicas", "Number of pods.", Source::Number("status.replicas")),
        stable(
            "kube_statefulset_status_replicas_available",
            "Number of available pods.",
            Source::Number("status.availableReplicas"),
        ),
        stable(
            "kube_statefulset_status_replicas_current",
            "Number of pods of the current revision.",
            Source::Number("status.currentReplicas"),
        ),
        stable(
            "kube_statefulset_status_replicas_ready",
            "Number of ready pods.",
            Source::Number("status.readyReplicas"),
        ),
        stable(
            "kube_statefulset_status_replicas_updated",
            "Number of pods of the update revision.",
            Source::Number("status.updatedReplicas"),
        ),
        stable(
            "kube_statefulset_status_observed_generation",
            "Generation that the controller has observed.",
            Source::Number("status.observedGeneration"),
        ),
        stable("kube_statefulset_replicas", "Number of desired pods.", Source::Given("spec.replicas")),
        stable("kube_statefulset_ordinals_start", "First ordinal.", Source::Each(ordinals)),
        stable("kube_statefulset_metadata_generation", GENERATION_HELP, GENERATION),
        stable(
            "kube_statefulset_persistentvolumeclaim_retention_policy",
            "Retention of claims after deletion and scaling.",
            Source::Each(retention),
        ),
        stable("kube_statefulset_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_statefulset_labels", LABELS_HELP, Source::Labels),
        stable(
            "kube_statefulset_status_current_revision",
            "Revision of the pods that are not updated yet.",
            Source::Info(&[("revision", "status.currentRevision")]),
        ),
        stable(
            "kube_statefulset_status_update_revision",
            "Revision of the updated pods.",
            Source::Info(&[("revision", "status.updateRevision")]),
        ),
        stable("kube_statefulset_deletion_timestamp", DELETED_HELP, DELETED),
    ],
};

fn ordinals(set: &Value, series: &mut Series<'_>) {
    if let Some(ordinals) = at(set, "spec.ordinals") {
        series.add(&[], number(ordinals, "start").unwrap_or(0.0));
    }
}

fn retention(set: &Value, series: &mut Series<'_>) {
    let policy = "spec.persistentVolumeClaimRetentionPolicy";
    let policy = at(set, policy).map(|one| (text(one, "whenDeleted"), text(one, "whenScaled")));
    if let Some((deleted, scaled)) = policy.filter(|both| *both != ("", "")) {
        series.add(&[("when_deleted", deleted), ("when_scaled", scaled)], 1.0);
    }
}
