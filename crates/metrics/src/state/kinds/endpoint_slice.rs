//! EndpointSlices.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha};
use crate::state::object::{flag, list, number, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "endpointslices",
    kind: "EndpointSlice",
    path: "/apis/discovery.k8s.io/v1",
    is_namespaced: true,
    identity: &[("endpointslice", NAME), ("namespace", NAMESPACE)],
    families: &[
        alpha(
            "kube_endpointslice_info",
            "Address type of an EndpointSlice.",
            Source::Info(&[("addresstype", "addressType")]),
        ),
        alpha("kube_endpointslice_created", CREATED_HELP, CREATED),
        alpha("kube_endpointslice_endpoints_hints", "Zones that endpoints serve.", Source::Each(hints)),
        alpha("kube_endpointslice_endpoints", "Endpoints by address.", Source::Each(endpoints)),
        alpha("kube_endpointslice_ports", "Ports of the endpoints.", Source::Each(ports)),
        alpha("kube_endpointslice_annotations", ANNOTATIONS_HELP, Source::Annotations),
        alpha("kube_endpointslice_labels", LABELS_HELP, Source::Labels),
    ],
};

fn hints(slice: &Value, series: &mut Series<'_>) {
    for endpoint in list(slice, "endpoints") {
        let address = list(endpoint, "addresses").first().and_then(Value::as_str).unwrap_or_default();
        for zone in list(endpoint, "hints.forZones") {
            series.add(&[("address", address), ("for_zone", text(zone, "name"))], 1.0);
        }
    }
}

/// kube-state-metrics has the terminating condition in the label `serving` and the host name in `terminating`; so has
/// this.
fn endpoints(slice: &Value, series: &mut Series<'_>) {
    for endpoint in list(slice, "endpoints") {
        let shown = |path: &str| match flag(endpoint, path) {
            Some(true) => Some("true"),
            Some(false) => Some("false"),
            None => None,
        };
        let serving = shown("conditions.terminating").or_else(|| shown("conditions.serving"));
        for address in list(endpoint, "addresses") {
            let labels = [
                ("ready", shown("conditions.ready").unwrap_or_default()),
                ("serving", serving.unwrap_or_default()),
                ("hostname", ""),
                ("terminating", text(endpoint, "hostname")),
                ("targetref_kind", text(endpoint, "targetRef.kind")),
                ("targetref_name", text(endpoint, "targetRef.name")),
                ("targetref_namespace", text(endpoint, "targetRef.namespace")),
                ("endpoint_nodename", text(endpoint, "nodeName")),
                ("endpoint_zone", text(endpoint, "zone")),
                ("address", address.as_str().unwrap_or_default()),
            ];
            series.add(&labels, 1.0);
        }
    }
}

fn ports(slice: &Value, series: &mut Series<'_>) {
    for port in list(slice, "ports") {
        let number = number(port, "port").map(|number| number.to_string()).unwrap_or_default();
        let labels = [
            ("port_name", text(port, "name")),
            ("port_protocol", text(port, "protocol")),
            ("port_number", &number),
        ];
        series.add(&labels, 1.0);
    }
}
