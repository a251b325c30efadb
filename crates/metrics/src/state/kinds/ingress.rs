//! Ingresses.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};
use crate::state::object::{at, list, number, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "ingresses",
    kind: "Ingress",
    path: "/apis/networking.k8s.io/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("ingress", NAME)],
    families: &[
        stable("kube_ingress_info", "Class of an Ingress.", Source::Each(info)),
        alpha("kube_ingress_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_ingress_labels", LABELS_HELP, Source::Labels),
        stable("kube_ingress_created", CREATED_HELP, CREATED),
        alpha("kube_ingress_metadata_resource_version", VERSION_HELP, Source::ResourceVersion),
        stable("kube_ingress_path", "Hosts and paths with their backends.", Source::Each(paths)),
        stable("kube_ingress_tls", "Hosts with the Secrets of their certificates.", Source::Each(tls)),
    ],
};

fn info(ingress: &Value, series: &mut Series<'_>) {
    let annotation =
        at(ingress, "metadata.annotations").and_then(|all| all.get("kubernetes.io/ingress.class"));
    let class = annotation.or_else(|| at(ingress, "spec.ingressClassName")).and_then(Value::as_str);
    series.add(&[("ingressclass", class.unwrap_or("_default"))], 1.0);
}

fn paths(ingress: &Value, series: &mut Series<'_>) {
    for rule in list(ingress, "spec.rules") {
        for path in list(rule, "http.paths") {
            let host = ("host", text(rule, "host"));
            let (place, kind) = (("path", text(path, "path")), ("path_type", text(path, "pathType")));
            if let Some(service) = at(path, "backend.service") {
                let port = number(service, "port.number").unwrap_or(0.0).to_string();
                let name = ("service_name", text(service, "name"));
                series.add(&[host, place, kind, name, ("service_port", &port)], 1.0);
            } else {
                let resource = |path_of: &'static str| text(path, path_of);
                let labels = [
                    host,
                    place,
                    kind,
                    ("resource_api_group", resource("backend.resource.apiGroup")),
                    ("resource_kind", resource("backend.resource.kind")),
                    ("resource_name", resource("backend.resource.name")),
                ];
                series.add(&labels, 1.0);
            }
        }
    }
}

fn tls(ingress: &Value, series: &mut Series<'_>) {
    for tls in list(ingress, "spec.tls") {
        for host in list(tls, "hosts") {
            let host = host.as_str().unwrap_or_default();
            series.add(&[("tls_host", host), ("secret", text(tls, "secretName"))], 1.0);
        }
    }
}
