//! Nodes.

use super::*;
use crate::state::family::{CREATED, DELETED, Kind, Source, alpha, stable};
use crate::state::object::{amount, entries, list, text, unit};
use crate::state::series::{Series, sanitize};
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "nodes",
    kind: "Node",
    path: "/api/v1",
    is_namespaced: false,
    identity: &[("node", NAME)],
    families: &[
        alpha("kube_node_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_node_created", CREATED_HELP, CREATED),
        alpha("kube_node_deletion_timestamp", DELETED_HELP, DELETED),
        stable("kube_node_info", "System of a node.", Source::Each(info)),
        stable("kube_node_labels", LABELS_HELP, Source::Labels),
        alpha("kube_node_role", "Roles of a node.", Source::Each(roles)),
        stable("kube_node_spec_taint", "Taints of a node.", Source::Each(taints)),
        stable(
            "kube_node_spec_unschedulable",
            "True if no further pods are scheduled to the node.",
            Source::Flag("spec.unschedulable"),
        ),
        stable(
            "kube_node_status_allocatable",
            "Resources of a node that pods may request.",
            Source::Each(allocatable),
        ),
        stable("kube_node_status_capacity", "Resources of a node.", Source::Each(capacity)),
        stable("kube_node_status_condition", "Conditions of a node.", Source::Conditions),
        alpha("kube_node_status_addresses", "Addresses of a node.", Source::Each(addresses)),
    ],
};

const ROLE: &str = "node-role.kubernetes.io/";

fn info(node: &Value, series: &mut Series<'_>) {
    let mut addresses = list(node, "status.addresses").iter();
    let internal = addresses.rfind(|address| text(address, "type") == "InternalIP");
    let labels = [
        ("kernel_version", text(node, "status.nodeInfo.kernelVersion")),
        ("os_image", text(node, "status.nodeInfo.osImage")),
        ("container_runtime_version", text(node, "status.nodeInfo.containerRuntimeVersion")),
        ("kubelet_version", text(node, "status.nodeInfo.kubeletVersion")),
        ("kubeproxy_version", "deprecated"),
        ("provider_id", text(node, "spec.providerID")),
        ("pod_cidr", text(node, "spec.podCIDR")),
        ("system_uuid", text(node, "status.nodeInfo.systemUUID")),
        ("internal_ip", internal.map_or("", |address| text(address, "address"))),
    ];
    series.add(&labels, 1.0);
}

fn roles(node: &Value, series: &mut Series<'_>) {
    for role in entries(node, "metadata.labels").filter_map(|(name, _)| name.strip_prefix(ROLE)) {
        series.add(&[("role", role)], 1.0);
    }
}

fn taints(node: &Value, series: &mut Series<'_>) {
    for taint in list(node, "spec.taints") {
        let labels =
            [("key", text(taint, "key")), ("value", text(taint, "value")), ("effect", text(taint, "effect"))];
        series.add(&labels, 1.0);
    }
}

fn allocatable(node: &Value, series: &mut Series<'_>) {
    resources(node, "status.allocatable", series);
}

fn capacity(node: &Value, series: &mut Series<'_>) {
    resources(node, "status.capacity", series);
}

fn resources(node: &Value, path: &str, series: &mut Series<'_>) {
    for (name, value) in entries(node, path) {
        let unit = if name == "pods" { Some("integer") } else { unit(name) };
        if let Some((unit, value)) = unit.zip(amount(value)) {
            series.add(&[("resource", &sanitize(name)), ("unit", unit)], value);
        }
    }
}

fn addresses(node: &Value, series: &mut Series<'_>) {
    for address in list(node, "status.addresses") {
        series.add(&[("type", text(address, "type")), ("address", text(address, "address"))], 1.0);
    }
}
