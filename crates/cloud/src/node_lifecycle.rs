//! The cloud node lifecycle controller. Watches nodes; deletes those whose machine is gone, taints those whose machine is
//! switched off.
//!
//! Invariant: a node that is not ready is there only as long as its machine is. A node that is ready is not asked after.

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
    #[error("asking the provider about node {0}")]
    Provider(String, #[source] ProviderError),
    #[error("writing node {0}")]
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

/// What to do about a node.
#[derive(Debug, PartialEq)]
enum Plan {
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
            Plan::Nothing => Ok(()),
            Plan::Taints(taints) => {
                let version = node.metadata.resource_version.as_deref();
                let patch =
                    json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
                ctx.client.patch::<Node>("", &key.name, None, &Patch::Merge(patch)).await.map(drop)
            }
            Plan::Delete => {
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

fn plan(node: &Node, ready: bool, instance: Option<&Instance>) -> Plan {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let tainted = taints.iter().any(|taint| taint.key == SHUT_DOWN);
    match (ready, instance) {
        (true, _) if tainted => {
            Plan::Taints(taints.into_iter().filter(|taint| taint.key != SHUT_DOWN).collect())
        }
        (true, _) => Plan::Nothing,
        (false, None) => Plan::Delete,
        (false, Some(instance)) if instance.shut_down && !tainted => {
            let taint = Taint {
                key: SHUT_DOWN.to_owned(),
                effect: "NoSchedule".to_owned(),
                value: None,
                time_added: None,
            };
            Plan::Taints(taints.into_iter().chain([taint]).collect())
        }
        (false, Some(_)) => Plan::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_come_and_go_with_their_machines() {
        let node = |taints| -> Node {
            serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": { "taints": taints } }))
                .expect("a node")
        };
        let (clean, off) = (node(json!([])), node(json!([{ "key": SHUT_DOWN, "effect": "NoSchedule" }])));
        let (running, switched_off) =
            (Instance::default(), Instance { shut_down: true, ..Instance::default() });
        assert_eq!(plan(&clean, true, None), Plan::Nothing);
        assert_eq!(plan(&off, true, None), Plan::Taints(vec![]));
        assert_eq!(plan(&clean, false, None), Plan::Delete);
        assert_eq!(plan(&clean, false, Some(&running)), Plan::Nothing);
        assert!(
            matches!(plan(&clean, false, Some(&switched_off)), Plan::Taints(taints) if taints.len() == 1)
        );
        assert_eq!(plan(&off, false, Some(&switched_off)), Plan::Nothing);
        let ready = json!({ "metadata": { "name": "n" }, "status": { "conditions": [
            { "type": "Ready", "status": "True" },
        ] } });
        assert!(is_ready(&serde_json::from_value(ready).expect("a node")));
        assert!(!is_ready(&clean));
    }
}
