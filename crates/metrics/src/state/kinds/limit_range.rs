//! LimitRanges.

use super::*;
use crate::state::family::{CREATED, Kind, Source, stable};
use crate::state::object::{amount, list, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "limitranges",
    kind: "LimitRange",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("limitrange", NAME)],
    families: &[
        stable("kube_limitrange", "Limits by resource, type and constraint.", Source::Each(limits)),
        stable("kube_limitrange_created", CREATED_HELP, CREATED),
    ],
};

fn limits(range: &Value, series: &mut Series<'_>) {
    for limit in list(range, "spec.limits") {
        for constraint in ["min", "max", "default", "defaultRequest", "maxLimitRequestRatio"] {
            let labels = [("type", text(limit, "type")), ("constraint", constraint)];
            series.add_quantities(limit, constraint, &labels, amount);
        }
    }
}
