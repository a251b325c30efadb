//! PersistentVolumeClaims.

use super::*;
use crate::state::family::{CREATED, DELETED, Kind, Source, alpha, stable};
use crate::state::object::{at, list, text, whole};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "persistentvolumeclaims",
    kind: "PersistentVolumeClaim",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("persistentvolumeclaim", NAME)],
    families: &[
        stable("kube_persistentvolumeclaim_labels", LABELS_HELP, Source::Labels),
        alpha("kube_persistentvolumeclaim_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_persistentvolumeclaim_info", "Class, volume and mode of a claim.", Source::Each(info)),
        stable(
            "kube_persistentvolumeclaim_status_phase",
            "Phase of a claim.",
            Source::OneOf("phase", "status.phase", &["Lost", "Bound", "Pending"]),
        ),
        stable(
            "kube_persistentvolumeclaim_resource_requests_storage_bytes",
            "Requested size in bytes.",
            Source::Each(size),
        ),
        stable("kube_persistentvolumeclaim_access_mode", "Access modes of a claim.", Source::Each(modes)),
        alpha("kube_persistentvolumeclaim_status_condition", "Conditions of a claim.", Source::Conditions),
        alpha("kube_persistentvolumeclaim_created", CREATED_HELP, CREATED),
        alpha("kube_persistentvolumeclaim_deletion_timestamp", DELETED_HELP, DELETED),
    ],
};

/// Annotation that names the storage class in old claims.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn info(claim: &Value, series: &mut Series<'_>) {
    let annotation = at(claim, "metadata.annotations").and_then(|all| all.get(CLASS)?.as_str());
    let labels = [
        ("storageclass", annotation.unwrap_or_else(|| text(claim, "spec.storageClassName"))),
        ("volumename", text(claim, "spec.volumeName")),
        ("volumemode", text(claim, "spec.volumeMode")),
    ];
    series.add(&labels, 1.0);
}

fn size(claim: &Value, series: &mut Series<'_>) {
    series.add_some(at(claim, "spec.resources.requests.storage").and_then(whole));
}

fn modes(claim: &Value, series: &mut Series<'_>) {
    for mode in list(claim, "spec.accessModes") {
        series.add(&[("access_mode", mode.as_str().unwrap_or_default())], 1.0);
    }
}
