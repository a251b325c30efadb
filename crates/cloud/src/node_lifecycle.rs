//! The cloud node lifecycle controller. Watches nodes; deletes those whose instance no longer exists, taints those
//! whose instance is shut down.
//!
//! Invariant: a node that is not ready exists only while its instance does. Ready nodes are not checked.

use async_trait::async_trait;
use client::{ClientError, DeleteOptions, Patch, Preconditions};
use objects::core::v1::{Node, Taint};
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::{Instance, ProviderError, Settings};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "cloud-node-lifecycle-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:node-controller",
    workers: 1,
};

pub const SHUT_DOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

#[derive(Debug, thiserror::Error)]
enum LifecycleError {
    #[error("failed to get the instance of node {0} from the cloud provider")]
    Provider(String, #[source] ProviderError),
    #[error("failed to update node {0}")]
    Write(String, #[source] ClientError),
}

struct Lifecycle {
    nodes: Cache<Node>,
    settings: Option<Settings>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let nodes = ctx.watch::<Node>(|change| match change {
        Change::Updated { old, new } if is_ready(old) == is_ready(new) => Vec::new(),
        Change::Deleted(_) => Vec::new(),
        _ => vec![Key::of(&**change.object())],
    });
    Box::new(Lifecycle { nodes, settings: crate::settings(ctx) })
}

/// Action for a node.
#[derive(Debug, PartialEq)]
enum LifecycleAction {
    Nothing,
    Delete,
    Taints(Vec<Taint>),
}

#[async_trait]
impl Loop for Lifecycle {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let (Some(settings), Some(node)) = (&self.settings, self.nodes.get_key(key)) else {
            return Ok(Action::Done);
        };
        let Some(instances) = settings.provider.instances() else { return Ok(Action::Done) };
        let ready = is_ready(&node);
        let instance = match ready {
            true => None,
            false => instances
                .find(&settings.cluster_name, &node)
                .await
                .map_err(|error| LifecycleError::Provider(key.name.to_string(), error))?,
        };
        let written = match plan(&node, ready, instance.as_ref()) {
            LifecycleAction::Nothing => Ok(()),
            LifecycleAction::Taints(taints) => {
                let version = node.metadata.resource_version.as_deref();
                let patch =
                    json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
                ctx.client.patch::<Node>("", &key.name, None, &Patch::Merge(patch)).await.map(drop)
            }
            LifecycleAction::Delete => {
                let note =
                    format!("Deleting node {} because it does not exist in the cloud provider", key.name);
                ctx.recorder.normal(&*node, "DeletingNode", note);
                let preconditions = Preconditions { uid: node.metadata.uid.clone(), resource_version: None };
                let options =
                    DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
                let deleted = ctx.client.delete::<Node>("", &key.name, &options).await;
                if let Err(error) = &deleted {
                    let note = format!("Failed deleting node {}: {error}", key.name);
                    ctx.recorder.warning(&*node, "DeletingNodeFailed", note);
                }
                deleted
            }
        };
        match written {
            Err(error) if error.is_not_found() => return Ok(Action::Done),
            written => written.map_err(|error| LifecycleError::Write(key.name.to_string(), error))?,
        }
        Ok(if ready { Action::Done } else { Action::RequeueAfter(settings.node_monitor_period) })
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn plan(node: &Node, ready: bool, instance: Option<&Instance>) -> LifecycleAction {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let tainted = taints.iter().any(|taint| taint.key == SHUT_DOWN);
    match (ready, instance) {
        (true, _) if tainted => {
            LifecycleAction::Taints(taints.into_iter().filter(|taint| taint.key != SHUT_DOWN).collect())
        }
        (true, _) => LifecycleAction::Nothing,
        (false, None) => LifecycleAction::Delete,
        (false, Some(instance)) if instance.shut_down && !tainted => {
            let taint = Taint {
                key: SHUT_DOWN.to_owned(),
                effect: "NoSchedule".to_owned(),
                value: None,
                time_added: None,
            };
            LifecycleAction::Taints(taints.into_iter().chain([taint]).collect())
        }
        (false, Some(_)) => LifecycleAction::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_instance_deletes_and_shut_down_instance_taints_node() {
        let node = |taints| -> Node {
            serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": { "taints": taints } }))
                .expect("a node")
        };
        let (clean, off) = (node(json!([])), node(json!([{ "key": SHUT_DOWN, "effect": "NoSchedule" }])));
        let (running, switched_off) =
            (Instance::default(), Instance { shut_down: true, ..Instance::default() });
        assert_eq!(plan(&clean, true, None), LifecycleAction::Nothing);
        assert_eq!(plan(&off, true, None), LifecycleAction::Taints(vec![]));
        assert_eq!(plan(&clean, false, None), LifecycleAction::Delete);
        assert_eq!(plan(&clean, false, Some(&running)), LifecycleAction::Nothing);
        assert!(
            matches!(plan(&clean, false, Some(&switched_off)), LifecycleAction::Taints(taints) if taints.len() == 1)
        );
        assert_eq!(plan(&off, false, Some(&switched_off)), LifecycleAction::Nothing);
        let ready = json!({ "metadata": { "name": "n" }, "status": { "conditions": [
            { "type": "Ready", "status": "True" },
        ] } });
        assert!(is_ready(&serde_json::from_value(ready).expect("a node")));
        assert!(!is_ready(&clean));
    }
}
