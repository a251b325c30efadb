//! Node object of a simulated node, and its status.

use base::version::git_version;
use client::{Client, ClientError, DeleteOptions, Patch};
use jiff::Timestamp;
use objects::core::v1::Node;
use objects::meta::v1::Time;
use serde_json::{Value, json};

use crate::{Fleet, addresses};

/// Ensures that the node exists and is ready.
pub async fn register(
    client: &Client,
    fleet: &Fleet,
    number: usize,
    now: Timestamp,
) -> Result<(), ClientError> {
    let name = fleet.name(number);
    let zone = format!("zone-{}", number % fleet.zones.max(1));
    let node: Node = objects::from_value(&json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/region": "simulated",
            "topology.kubernetes.io/zone": zone,
        }},
    }))
    .map_err(ClientError::Encode)?;
    match client.create("", &node).await {
        Err(error) if !error.is_already_exists() => return Err(error),
        _ => {}
    }
    let patch = Patch::Strategic(json!({"status": status(fleet, &name, number, now)}));
    client.patch::<Node>("", &name, Some("status"), &patch).await?;
    Ok(())
}

fn status(fleet: &Fleet, name: &str, number: usize, now: Timestamp) -> Value {
    let resources = json!({
        "cpu": fleet.cpu,
        "memory": fleet.memory,
        "ephemeral-storage": "100Gi",
        "pods": fleet.pods_per_node.to_string(),
    });
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "simulated",
            "lastHeartbeatTime": Time(now), "lastTransitionTime": Time(now),
        })
    };
    let (address, port) = match fleet.kubelet_port {
        Some(port) => (addresses::loopback_of_node(number), port),
        None => (addresses::of_node(number), 0),
    };
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": address.to_string()},
            {"type": "Hostname", "address": name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady"),
        ],
        "nodeInfo": {
            "architecture": "amd64", "operatingSystem": "linux", "osImage": "simulated",
            "kernelVersion": "simulated", "containerRuntimeVersion": "simulated://1.0",
            "kubeletVersion": git_version(), "kubeProxyVersion": "", "bootID": "", "machineID": "", "systemUUID": "",
        },
    })
}

pub async fn remove(client: &Client, name: &str) -> Result<(), ClientError> {
    match client.delete::<Node>("", name, &DeleteOptions::default()).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
