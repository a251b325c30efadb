//! ResourceQuotas.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};
use crate::state::object::amount;
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "resourcequotas",
    kind: "ResourceQuota",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("resourcequota", NAME)],
    families: &[
        stable("kube_resourcequota_created", CREATED_HELP, CREATED),
        stable("kube_resourcequota", "Limits and usage by resource.", Source::Each(resources)),
        alpha("kube_resourcequota_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_resourcequota_labels", LABELS_HELP, Source::Labels),
    ],
};

fn resources(quota: &Value, series: &mut Series<'_>) {
    series.add_quantities(quota, "status.hard", &[("type", "hard")], amount);
    series.add_quantities(quota, "status.used", &[("type", "used")], amount);
}
