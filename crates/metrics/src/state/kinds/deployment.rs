//! Deployments.

use super::*;
use crate::state::family::{CREATED, DELETED, GENERATION, Kind, Source, alpha, stable};
use crate::state::object::{at, list, number, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "deployments",
    kind: "Deployment",
    path: "/apis/apps/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("deployment", NAME)],
    families: &[
        alpha("kube_deployment_owner", OWNER_HELP, Source::Each(owners)),
        stable("kube_deployment_created", CREATED_HELP, CREATED),
        stable("kube_deployment_status_replicas", "Number of pods.", Source::Number("status.replicas")),
        stable(
            "kube_deployment_status_replicas_ready",
            "Number of ready pods.",
            Source::Number("status.readyReplicas"),
        ),
        stable(
            "kube_deployment_status_replicas_available",
            "Number of available pods.",
            Source::Number("status.availableReplicas"),
        ),
        stable(
            "kube_deployment_status_replicas_unavailable",
            "Number of unavailable pods.",
            Source::Number("status.unavailableReplicas"),
        ),
        stable(
            "kube_deployment_status_replicas_updated",
            "Number of pods of the present template.",
            Source::Number("status.updatedReplicas"),
        ),
        alpha(
            "kube_deployment_status_terminating_replicas",
            "Number of terminating pods.",
            Source::Given("status.terminatingReplicas"),
        ),
        stable(
            "kube_deployment_status_observed_generation",
            "Generation that the controller has observed.",
            Source::Number("status.observedGeneration"),
        ),
        stable(
            "kube_deployment_status_condition",
            "Conditions with their reasons and statuses.",
            Source::Each(conditions),
        ),
        stable("kube_deployment_spec_replicas", "Number of desired pods.", Source::Given("spec.replicas")),
        stable(
            "kube_deployment_spec_paused",
            "True if the controller does not process the deployment.",
            Source::Flag("spec.paused"),
        ),
        stable(
            "kube_deployment_spec_strategy_rollingupdate_max_unavailable",
            "Pods that may be unavailable during a rolling update.",
            Source::Each(max_unavailable),
        ),
        stable(
            "kube_deployment_spec_strategy_rollingupdate_max_surge",
            "Pods that a rolling update may create above the desired number.",
            Source::Each(max_surge),
        ),
        stable("kube_deployment_metadata_generation", GENERATION_HELP, GENERATION),
        alpha("kube_deployment_deletion_timestamp", DELETED_HELP, DELETED),
        alpha("kube_deployment_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_deployment_labels", LABELS_HELP, Source::Labels),
    ],
};

/// Reasons that the deployment controller gives; others count as unknown.
const REASONS: [&str; 11] = [
    "",
    "ReplicaSetUpdated",
    "ReplicaSetCreateError",
    "NewReplicaSetCreated",
    "FoundNewReplicaSet",
    "NewReplicaSetAvailable",
    "ProgressDeadlineExceeded",
    "DeploymentPaused",
    "DeploymentResumed",
    "MinimumReplicasAvailable",
    "MinimumReplicasUnavailable",
];

fn owners(deployment: &Value, series: &mut Series<'_>) {
    let owners = list(deployment, "metadata.ownerReferences");
    if owners.is_empty() {
        series.add(&[("owner_kind", ""), ("owner_name", "")], 1.0);
    }
    for owner in owners {
        series.add(&[("owner_kind", text(owner, "kind")), ("owner_name", text(owner, "name"))], 1.0);
    }
}

fn conditions(deployment: &Value, series: &mut Series<'_>) {
    for condition in list(deployment, "status.conditions") {
        let reason = text(condition, "reason");
        let reason = if REASONS.contains(&reason) { reason } else { "unknown" };
        let labels = [("reason", reason), ("condition", text(condition, "type"))];
        series.add_statuses(&labels, "status", text(condition, "status"));
    }
}

fn max_unavailable(deployment: &Value, series: &mut Series<'_>) {
    series.add_some(scaled(deployment, "spec.strategy.rollingUpdate.maxUnavailable", f64::floor));
}

fn max_surge(deployment: &Value, series: &mut Series<'_>) {
    series.add_some(scaled(deployment, "spec.strategy.rollingUpdate.maxSurge", f64::ceil));
}

/// A number, or a percentage of the replicas.
fn scaled(deployment: &Value, path: &str, round: fn(f64) -> f64) -> Option<f64> {
    let value = at(deployment, path)?;
    if let Some(number) = value.as_f64() {
        return Some(number);
    }
    let percent: i32 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    Some(round(f64::from(percent) * number(deployment, "spec.replicas")? / 100.0))
}
