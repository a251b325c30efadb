//! Nodes, runtime classes, leases.

use super::cell::{NONE, UNKNOWN, age, condition, flag, list, name, or, text};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::Table;
use machinery::{Value, meta};
use std::collections::BTreeSet;

pub(crate) static NODE: Table = plain(
    &[
        NAME,
        column("Status", "string", "The status of the node"),
        column("Roles", "string", "The roles of the node"),
        AGE,
        column("Version", "string", doc::NODE_SYSTEM_INFO_KUBELET_VERSION),
        wide("Internal-IP", "string", doc::NODE_STATUS_ADDRESSES),
        wide("External-IP", "string", doc::NODE_STATUS_ADDRESSES),
        wide("OS-Image", "string", doc::NODE_SYSTEM_INFO_OS_IMAGE),
        wide("Kernel-Version", "string", doc::NODE_SYSTEM_INFO_KERNEL_VERSION),
        wide("Container-Runtime", "string", doc::NODE_SYSTEM_INFO_CONTAINER_RUNTIME_VERSION),
    ],
    |node, context| {
        let info = |field| text(node, &["status", "nodeInfo", field]);
        let mut kernel = or(info("kernelVersion"), UNKNOWN).to_owned();
        if !info("architecture").is_empty() {
            kernel = format!("{kernel} ({})", info("architecture"));
        }
        vec![
            name(node),
            status(node).into(),
            or(&roles(node), NONE).into(),
            age(node, context),
            info("kubeletVersion").into(),
            address(node, "InternalIP").into(),
            address(node, "ExternalIP").into(),
            or(info("osImage"), UNKNOWN).into(),
            kernel.into(),
            or(info("containerRuntimeVersion"), UNKNOWN).into(),
        ]
    },
);

fn status(node: &Value) -> String {
    let ready = match condition(node, "Ready").map(|ready| text(ready, &["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let suffix = if flag(node, &["spec", "unschedulable"]) { ",SchedulingDisabled" } else { "" };
    format!("{ready}{suffix}")
}

/// Roles from labels: one key per role, or the role as the value of one key.
fn roles(node: &Value) -> String {
    let mut roles = BTreeSet::new();
    for (key, value) in meta::labels(node).into_iter().flatten() {
        match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => roles.insert(role),
            None if key == "kubernetes.io/role" => roles.insert(value.as_str().unwrap_or("")),
            None => false,
        };
    }
    roles.remove("");
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn address<'a>(node: &'a Value, kind: &str) -> &'a str {
    list(node, &["status", "addresses"])
        .iter()
        .find(|address| text(address, &["type"]) == kind)
        .map_or(NONE, |address| text(address, &["address"]))
}

pub(crate) static RUNTIME_CLASS: Table =
    plain(&[NAME, column("Handler", "string", ""), AGE], |class, context| {
        vec![name(class), text(class, &["handler"]).into(), age(class, context)]
    });

pub(crate) static LEASE: Table =
    plain(&[NAME, column("Holder", "string", doc::LEASE_SPEC_HOLDER_IDENTITY), AGE], |lease, context| {
        vec![name(lease), text(lease, &["spec", "holderIdentity"]).into(), age(lease, context)]
    });

pub(crate) static LEASE_CANDIDATE: Table = plain(
    &[
        NAME,
        column(
            "LeaseName",
            "string",
            "LeaseName is the name of the lease for which this candidate is contending.",
        ),
        column("BinaryVersion", "string", ""),
        column("EmulationVersion", "string", ""),
        AGE,
    ],
    |candidate, context| {
        let spec = |field| text(candidate, &["spec", field]).into();
        vec![
            name(candidate),
            spec("leaseName"),
            spec("binaryVersion"),
            spec("emulationVersion"),
            age(candidate, context),
        ]
    },
);
