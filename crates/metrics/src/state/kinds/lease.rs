//! Leases.

use super::*;
use crate::state::family::{Kind, Source, alpha};
use crate::state::object::{list, seconds, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "leases",
    kind: "Lease",
    path: "/apis/coordination.k8s.io/v1",
    is_namespaced: true,
    identity: &[("lease", NAME)],
    families: &[
        alpha("kube_lease_owner", "Owners and holder of a Lease.", Source::Each(owners)),
        alpha("kube_lease_renew_time", "Unix time of the last renewal.", Source::Each(renewal)),
    ],
};

fn owners(lease: &Value, series: &mut Series<'_>) {
    let mut add = |kind: &str, name: &str| {
        let labels = [
            ("owner_kind", kind),
            ("owner_name", name),
            ("namespace", text(lease, NAMESPACE)),
            ("lease_holder", text(lease, "spec.holderIdentity")),
        ];
        series.add(&labels, 1.0);
    };
    let owners = list(lease, "metadata.ownerReferences");
    if owners.is_empty() {
        add("", "");
    }
    for owner in owners {
        add(text(owner, "kind"), text(owner, "name"));
    }
}

fn renewal(lease: &Value, series: &mut Series<'_>) {
    if let Some(time) = seconds(lease, "spec.renewTime") {
        series.add(&[("namespace", text(lease, NAMESPACE))], time);
    }
}
