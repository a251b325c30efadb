//! Node registration.

use std::collections::BTreeMap;

use client::{ClientError, Patch};
use objects::core::v1::{Node, NodeSpec, NodeStatus};
use objects::meta::v1::ObjectMeta;
use serde_json::json;

use crate::shared::Shared;

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
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels(shared)),
            annotations: Some(BTreeMap::from([(
                "volumes.kubernetes.io/controller-managed-attach-detach".to_owned(),
                "true".to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(status),
    };
    match shared.client.create("", &node).await {
        Err(error) if error.is_already_exists() => shared.client.get("", name).await,
        outcome => outcome,
    }
}
