//! StorageClasses.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};
use crate::state::object::{at, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "storageclasses",
    kind: "StorageClass",
    path: "/apis/storage.k8s.io/v1",
    is_namespaced: false,
    identity: &[("storageclass", NAME)],
    families: &[
        stable("kube_storageclass_info", "Provisioner and policies of a class.", Source::Each(info)),
        stable("kube_storageclass_created", CREATED_HELP, CREATED),
        alpha("kube_storageclass_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_storageclass_labels", LABELS_HELP, Source::Labels),
    ],
};

fn info(class: &Value, series: &mut Series<'_>) {
    let or = |path: &str, default: &'static str| at(class, path).and_then(Value::as_str).unwrap_or(default);
    let labels = [
        ("provisioner", text(class, "provisioner")),
        ("reclaim_policy", or("reclaimPolicy", "Delete")),
        ("volume_binding_mode", or("volumeBindingMode", "Immediate")),
    ];
    series.add(&labels, 1.0);
}
