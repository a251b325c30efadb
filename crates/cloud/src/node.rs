//! The cloud node controller. Watches nodes; writes their provider ID, labels, taints and addresses.
//!
//! Invariant: a node that registered with the taint `node.cloudprovider.kubernetes.io/uninitialized` loses it once
//! the provider has identified it; node addresses are the provider's.

use std::collections::BTreeMap;

use async_trait::async_trait;
use client::{ClientError, Patch};
use objects::core::v1::{Node, NodeAddress};
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::node_addresses::{AddressError, arrange, current};
use crate::{Instance, ProviderError, Settings};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "cloud-node-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:node-controller",
    workers: 1,
};

pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

const TYPE: (&str, &str) = ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type");
const ZONE: (&str, &str) = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
const REGION: (&str, &str) = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region");

#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("failed to get the instance of node {0} from the cloud provider")]
    Provider(String, #[source] ProviderError),
    #[error("the cloud provider has no instance for node {0}")]
    Unknown(String),
    #[error("the cloud provider returned no provider ID for node {0}")]
    NoProviderId(String),
    #[error("failed to apply the provided node IP of node {0}")]
    Address(String, #[source] AddressError),
    #[error("failed to update node {0}")]
    Write(String, #[source] ClientError),
}

struct NodeLoop {
    nodes: Cache<Node>,
    settings: Option<Settings>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let nodes = ctx.watch::<Node>(|change| match change {
        // Heartbeats change no relevant field.
        Change::Updated { old, new }
            if old.spec == new.spec && old.metadata.labels == new.metadata.labels =>
        {
            Vec::new()
        }
        _ => vec![Key::of(&**change.object())],
    });
    Box::new(NodeLoop { nodes, settings: crate::settings(ctx) })
}

#[async_trait]
impl Loop for NodeLoop {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let (Some(settings), Some(node)) = (&self.settings, self.nodes.get_key(key)) else {
            return Ok(Action::Done);
        };
        let Some(instances) = settings.provider.instances() else { return Ok(Action::Done) };
        let name = || key.name.to_string();
        let found = instances.find(&settings.cluster_name, &node).await;
        let instance = match found {
            Err(ProviderError::NotYet { after, .. }) => return Ok(Action::RequeueAfter(after)),
            found => found.map_err(|error| NodeError::Provider(name(), error))?,
        };
        let again = Action::RequeueAfter(settings.node_status_update_frequency);
        let young = is_uninitialized(&node);
        let Some(instance) = instance else {
            // Removing an old node is up to the lifecycle controller.
            return if young { Err(NodeError::Unknown(name()).into()) } else { Ok(again) };
        };
        let addresses =
            arrange(&node, &instance.addresses).map_err(|error| NodeError::Address(name(), error))?;
        let write = |error| NodeError::Write(name(), error);
        if let Some(changed) = plan(&node, &instance)? {
            ctx.client.update(&changed).await.map_err(write)?;
        }
        if differ(current(&node), &addresses) {
            // Clients merge the address list by type, which may occur twice here, so it is replaced as a whole.
            let patch = Patch::Merge(json!({ "status": { "addresses": addresses } }));
            ctx.client.patch::<Node>("", &key.name, Some("status"), &patch).await.map_err(write)?;
        }
        if young {
            ctx.recorder.normal(&*node, "Synced", "Node synced successfully");
        }
        Ok(again)
    }
}

fn is_uninitialized(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == UNINITIALIZED)
}

/// Reports whether addresses changed; as in Kubernetes, an empty list from the provider changes nothing.
fn differ(old: &[NodeAddress], new: &[NodeAddress]) -> bool {
    !new.is_empty() && old != new
}

/// The desired node, if it differs.
fn plan(node: &Node, instance: &Instance) -> Result<Option<Node>, NodeError> {
    let mut changed = node.clone();
    let labels = changed.metadata.labels.get_or_insert_default();
    if is_uninitialized(node) {
        let spec = changed.spec.get_or_insert_default();
        if spec.provider_id.as_deref().unwrap_or_default().is_empty() {
            if instance.provider_id.is_empty() {
                return Err(NodeError::NoProviderId(node.metadata.name.clone().unwrap_or_default()));
            }
            spec.provider_id = Some(instance.provider_id.clone());
        }
        if let Some(taints) = &mut spec.taints {
            taints.retain(|taint| taint.key != UNINITIALIZED);
        }
        for ((beta, stable), value) in
            [(TYPE, &instance.instance_type), (ZONE, &instance.zone), (REGION, &instance.region)]
        {
            if !value.is_empty() {
                labels.insert(beta.to_owned(), value.clone());
                labels.insert(stable.to_owned(), value.clone());
            }
        }
        for (key, value) in &instance.labels {
            if !is_kubernetes(key) && !labels.contains_key(key) {
                labels.insert(key.clone(), value.clone());
            }
        }
    }
    mirror(labels);
    if labels.is_empty() && node.metadata.labels.is_none() {
        changed.metadata.labels = None;
    }
    Ok((changed != *node).then_some(changed))
}

/// Deprecated labels determine their replacements.
fn mirror(labels: &mut BTreeMap<String, String>) {
    for (beta, stable) in [TYPE, ZONE, REGION] {
        if let Some(value) = labels.get(beta).cloned() {
            labels.insert(stable.to_owned(), value);
        }
    }
}

/// True for label domains that providers must not set.
fn is_kubernetes(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|own| domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).expect("a node")
    }

    fn instance() -> Instance {
        Instance {
            provider_id: "test://1".to_owned(),
            instance_type: "big".to_owned(),
            zone: "z1".to_owned(),
            region: "r1".to_owned(),
            labels: [("acme.example/rack", "7"), ("topology.kubernetes.io/x", "no"), ("own", "theirs")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Instance::default()
        }
    }

    #[test]
    fn uninitialized_node_is_initialized_once() {
        let young = node(json!({
            "metadata": { "name": "n", "labels": { "own": "mine" } },
            "spec": { "taints": [{ "key": UNINITIALIZED, "effect": "NoSchedule" }, { "key": "other", "effect": "NoSchedule" }] },
        }));
        let made = plan(&young, &instance()).expect("planned").expect("changed");
        let (spec, labels) =
            (made.spec.clone().expect("a spec"), made.metadata.labels.clone().expect("labels"));
        assert_eq!(spec.provider_id.as_deref(), Some("test://1"));
        assert_eq!(spec.taints.map(|taints| taints.len()), Some(1));
        assert_eq!(labels["topology.kubernetes.io/zone"], "z1");
        assert_eq!(labels["failure-domain.beta.kubernetes.io/region"], "r1");
        assert_eq!(labels["node.kubernetes.io/instance-type"], "big");
        assert_eq!((labels["acme.example/rack"].as_str(), labels["own"].as_str()), ("7", "mine"));
        assert!(!labels.contains_key("topology.kubernetes.io/x"));
        assert!(plan(&made, &instance()).expect("planned").is_none(), "nothing more to do");
        let nameless = Instance { provider_id: String::new(), ..instance() };
        assert!(matches!(plan(&young, &nameless), Err(NodeError::NoProviderId(_))));
    }

    #[test]
    fn deprecated_labels_set_their_replacements() {
        let old = node(json!({ "metadata": { "name": "n", "labels": {
            "failure-domain.beta.kubernetes.io/zone": "a", "topology.kubernetes.io/zone": "b",
        } } }));
        let made = plan(&old, &instance()).expect("planned").expect("changed");
        assert_eq!(made.metadata.labels.expect("labels")["topology.kubernetes.io/zone"], "a");
        let bare = node(json!({ "metadata": { "name": "n" } }));
        assert!(plan(&bare, &instance()).expect("planned").is_none());
    }

    #[test]
    fn label_domains_of_kubernetes_are_reserved() {
        for (key, expected) in
            [("kubernetes.io/x", true), ("a.k8s.io/x", true), ("mykubernetes.io/x", false), ("x", false)]
        {
            assert_eq!(is_kubernetes(key), expected, "{key}");
        }
    }
}
