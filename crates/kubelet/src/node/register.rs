//! Node registration.

use std::collections::BTreeMap;

use client::{ClientError, Patch};
use objects::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use objects::meta::v1::ObjectMeta;
use serde_json::json;

use crate::shared::Shared;

/// Taint of a node that a cloud controller manager has not initialized.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Addresses that the cloud controller manager selects by.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Settings of a node that is registered for the first time.
#[derive(Clone, Debug, Default)]
pub struct RegistrationConfig {
    pub taints: Vec<Taint>,
    /// Identifier of the machine for the cloud provider.
    pub provider_id: Option<String>,
    /// A cloud controller manager initializes the node and writes its addresses.
    pub external_cloud: bool,
}

impl RegistrationConfig {
    fn spec(&self) -> NodeSpec {
        let mut taints: Vec<Taint> = Vec::new();
        let uninitialized = self.external_cloud.then(|| Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
        for taint in self.taints.iter().cloned().chain(uninitialized) {
            if !taints.iter().any(|known| known.key == taint.key && known.effect == taint.effect) {
                taints.push(taint);
            }
        }
        NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            provider_id: self.provider_id.clone(),
            ..NodeSpec::default()
        }
    }
}

/// Labels of every node.
fn labels(shared: &Shared) -> BTreeMap<String, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut labels = BTreeMap::from([
        ("kubernetes.io/arch".to_owned(), architecture.to_owned()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/hostname".to_owned(), shared.config.node_name.clone()),
        ("beta.kubernetes.io/arch".to_owned(), architecture.to_owned()),
        ("beta.kubernetes.io/os".to_owned(), "linux".to_owned()),
    ]);
    labels.extend(shared.config.labels.clone());
    labels
}

/// Creates the node with its first status, or updates the labels of an existing one.
pub async fn register(shared: &Shared, status: NodeStatus) -> Result<Node, ClientError> {
    let name = &shared.config.node_name;
    if let Some(found) = shared.find::<Node>("", name).await? {
        let wanted = labels(shared);
        let present = found.metadata.labels.clone().unwrap_or_default();
        if wanted.iter().all(|(key, value)| present.get(key) == Some(value)) {
            return Ok(found);
        }
        let patch = Patch::Merge(json!({"metadata": {"labels": wanted}}));
        return shared.client.patch("", name, None, &patch).await;
    }
    let config = &shared.config;
    let mut annotations = BTreeMap::from([(
        "volumes.kubernetes.io/controller-managed-attach-detach".to_owned(),
        "true".to_owned(),
    )]);
    if config.registration.external_cloud && !config.node_ips.is_empty() {
        let ips: Vec<String> = config.node_ips.iter().map(ToString::to_string).collect();
        annotations.insert(PROVIDED_IP.to_owned(), ips.join(","));
    }
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels(shared)),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(config.registration.spec()),
        status: Some(status),
    };
    match shared.client.create("", &node).await {
        Err(error) if error.is_already_exists() => shared.client.get("", name).await,
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_spec_has_taints_and_provider() {
        let taint = |key: &str, effect: &str| Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            ..Taint::default()
        };
        let config = RegistrationConfig {
            taints: vec![taint("a", "NoSchedule"), taint("a", "NoExecute"), taint("a", "NoSchedule")],
            provider_id: Some("cloud:///1".to_owned()),
            external_cloud: true,
        };
        let spec = config.spec();
        let taints: Vec<String> =
            spec.taints.iter().flatten().map(|one| format!("{}:{}", one.key, one.effect)).collect();
        assert_eq!(
            taints,
            ["a:NoSchedule", "a:NoExecute", "node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"]
        );
        assert_eq!(spec.provider_id.as_deref(), Some("cloud:///1"));
        assert_eq!(RegistrationConfig::default().spec(), NodeSpec::default());
    }
}
