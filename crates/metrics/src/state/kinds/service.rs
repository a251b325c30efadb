//! Services.

use super::*;
use crate::state::family::{CREATED, DELETED, Kind, Source, alpha, stable};
use crate::state::object::{list, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "services",
    kind: "Service",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("service", NAME), ("uid", UID)],
    families: &[
        stable(
            "kube_service_info",
            "Addresses and traffic policy of a Service.",
            Source::Info(&[
                ("cluster_ip", "spec.clusterIP"),
                ("external_name", "spec.externalName"),
                ("load_balancer_ip", "spec.loadBalancerIP"),
                ("external_traffic_policy", "spec.externalTrafficPolicy"),
            ]),
        ),
        stable("kube_service_created", CREATED_HELP, CREATED),
        stable("kube_service_spec_type", "Type of a Service.", Source::Info(&[("type", "spec.type")])),
        alpha("kube_service_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_service_labels", LABELS_HELP, Source::Labels),
        stable("kube_service_spec_external_ip", "External addresses.", Source::Each(external)),
        stable(
            "kube_service_status_load_balancer_ingress",
            "Addresses of the load balancer.",
            Source::Each(load_balancer),
        ),
        alpha("kube_service_deletion_timestamp", DELETED_HELP, DELETED),
    ],
};

fn external(service: &Value, series: &mut Series<'_>) {
    for ip in list(service, "spec.externalIPs") {
        series.add(&[("external_ip", ip.as_str().unwrap_or_default())], 1.0);
    }
}

fn load_balancer(service: &Value, series: &mut Series<'_>) {
    for ingress in list(service, "status.loadBalancer.ingress") {
        series.add(&[("ip", text(ingress, "ip")), ("hostname", text(ingress, "hostname"))], 1.0);
    }
}
