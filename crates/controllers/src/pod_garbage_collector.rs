//! The pod garbage collector. Watches pods and nodes; deletes pods that no other component deletes.
//!
//! Invariant: no pod stays that is bound to a deleted or out-of-service node, that was deleted before it was bound,
//! or that finished beyond the threshold of finished pods.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::{DeleteOptions, Patch, Preconditions};
use objects::core::v1::{Node, Pod};
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;
use tokio::time::Instant;

use crate::Settings;
use crate::shared::{metrics, pod_facts};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "pod-garbage-collector-controller",
    resource: "pods",
    identity: "system:serviceaccount:kube-system:pod-garbage-collector",
    workers: 2,
};

/// Time for which a node must be missing: the cache may not have seen it yet.
const QUARANTINE: Duration = Duration::from_secs(40);
const BY_NODE: &str = "node";
const FINISHED_INDEX: &str = "finished";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

struct PodGarbage {
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    missing: Mutex<HashMap<String, Instant>>,
}

/// Key under which finished pods are counted.
fn count_key() -> Key {
    Key::new("", "finished pods")
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let pods = ctx.watch::<Pod>(|change| match change {
        Change::Deleted(_) => Vec::new(),
        change => {
            let pod = change.object();
            let count = (pod_facts::is_finished(pod)).then(count_key);
            [Key::of(&**pod)].into_iter().chain(count).collect()
        }
    });
    pods.add_index(BY_NODE, |pod: &Pod| node_of(pod).map(str::to_owned).into_iter().collect());
    pods.add_index(FINISHED_INDEX, |pod: &Pod| {
        pod_facts::is_finished(pod).then(|| "yes".to_owned()).into_iter().collect()
    });
    let bound = pods.clone();
    let nodes = ctx.watch::<Node>(move |change| {
        let node = change.object();
        let trouble = matches!(change, Change::Deleted(_)) || is_out_of_service(node);
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if trouble {
            bound.indexed(BY_NODE, name).iter().map(|pod| Key::of(&**pod)).collect()
        } else {
            Vec::new()
        }
    });
    Box::new(PodGarbage { pods, nodes, missing: Mutex::default() })
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    !ready && taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// State of a pod's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    None,
    Present,
    OutOfService,
    Missing { since: Duration },
}

impl NodeState {
    /// Reason of a deletion as a label of metrics.
    fn label(self) -> &'static str {
        match self {
            Self::None => "unscheduled",
            Self::Present | Self::Missing { .. } => "orphaned",
            Self::OutOfService => "out-of-service",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// The node may still appear.
    RequeueAfter(Duration),
    /// Deletes it immediately; an unfinished pod is failed first, with the DisruptionTarget condition if it had a node.
    Delete(&'static str),
}

fn plan(pod: &Pod, host: NodeState) -> Verdict {
    match host {
        NodeState::None if pod_facts::is_deleting(pod) => Verdict::Delete("PodGC: the pod was never bound"),
        NodeState::OutOfService if pod_facts::is_deleting(pod) => {
            Verdict::Delete("PodGC: node is out of service")
        }
        NodeState::Missing { since } if since >= QUARANTINE => {
            Verdict::Delete("PodGC: node no longer exists")
        }
        NodeState::Missing { since } => Verdict::RequeueAfter(QUARANTINE.saturating_sub(since)),
        NodeState::None | NodeState::Present | NodeState::OutOfService => Verdict::Keep,
    }
}

#[async_trait]
impl Loop for PodGarbage {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        if *key == count_key() {
            return self.delete_finished(ctx).await;
        }
        let Some(pod) = self.pods.get_key(key) else { return Ok(Action::Done) };
        let node = node_of(&pod).map(|name| (name, self.nodes.get("", name)));
        let host = match &node {
            None => NodeState::None,
            Some((name, None)) => NodeState::Missing { since: self.missing_since(name) },
            Some((_, Some(node))) if is_out_of_service(node) => NodeState::OutOfService,
            Some(_) => NodeState::Present,
        };
        if let Some((name, Some(_))) = &node {
            self.missing.lock().remove(*name);
        }
        match plan(&pod, host) {
            Verdict::Keep => Ok(Action::Done),
            Verdict::RequeueAfter(wait) => Ok(Action::RequeueAfter(wait)),
            Verdict::Delete(why) => {
                if let (NodeState::Missing { .. }, Some((name, _))) = (host, node) {
                    // The cache may be stale; a deletion cannot be undone.
                    match ctx.client.get::<Node>("", name).await {
                        Err(error) if error.is_not_found() => {}
                        outcome => {
                            outcome?;
                            return Ok(Action::Done);
                        }
                    }
                }
                self.delete(&pod, host, why, ctx).await
            }
        }
    }
}

impl PodGarbage {
    fn missing_since(&self, node: &str) -> Duration {
        let mut missing = self.missing.lock();
        // Forgets nodes that exist again or have no pods left.
        missing.retain(|name, _| {
            self.nodes.get("", name).is_none() && !self.pods.indexed(BY_NODE, name).is_empty()
        });
        missing.entry(node.to_owned()).or_insert_with(Instant::now).elapsed()
    }

    async fn delete(
        &self,
        pod: &Arc<Pod>,
        host: NodeState,
        why: &str,
        ctx: &Context,
    ) -> Result<Action, LoopError> {
        let meta = &pod.metadata;
        let (ns, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        if !pod_facts::is_finished(pod) {
            let mut status = json!({"phase": "Failed"});
            if host != NodeState::None {
                status["conditions"] = json!([{
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByPodGC",
                    "message": why,
                    "lastTransitionTime": objects::meta::v1::Time(ctx.clock.now()),
                }]);
            }
            let patch = Patch::Strategic(json!({"metadata": {"uid": meta.uid}, "status": status}));
            match ctx.client.patch::<Pod>(ns, name, Some("status"), &patch).await {
                Err(error) if error.is_not_found() || error.is_conflict() => return Ok(Action::Done),
                Err(error) => {
                    record(ctx, pod, host.label(), true);
                    return Err(error.into());
                }
                Ok(_) => {}
            }
        }
        remove(pod, host.label(), ctx).await
    }

    async fn delete_finished(&self, ctx: &Context) -> Result<Action, LoopError> {
        let mut finished = self.pods.indexed(FINISHED_INDEX, "yes");
        let Some(kept) = Settings::of(ctx).terminated_pods else { return Ok(Action::Done) };
        let surplus = finished.len().saturating_sub(kept);
        if surplus > 0 {
            finished.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone()));
            for pod in finished.iter().take(surplus) {
                remove(pod, "terminated", ctx).await?;
            }
        }
        Ok(Action::Done)
    }
}

/// Counts a deletion by the label of its reason.
fn record(ctx: &Context, pod: &Pod, reason: &str, is_error: bool) {
    let Some(metrics) = metrics::of(ctx) else { return };
    let namespace = metrics.names.bound(pod.metadata.namespace.as_deref().unwrap_or_default());
    let counters = if is_error { &metrics.others.pod_deletion_errors } else { &metrics.others.pod_deletions };
    counters.with_label_values(&[namespace, reason]).inc();
}

async fn remove(pod: &Pod, reason: &str, ctx: &Context) -> Result<Action, LoopError> {
    let meta = &pod.metadata;
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: meta.uid.clone(), ..Preconditions::default() }),
        ..DeleteOptions::default()
    };
    let (ns, name) =
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    match ctx.client.delete::<Pod>(ns, name, &options).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => {
            record(ctx, pod, reason, true);
            Err(error.into())
        }
        Err(_) => Ok(Action::Done),
        Ok(()) => {
            record(ctx, pod, reason, false);
            Ok(Action::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{pod, time};

    #[test]
    fn verdict_by_pod_and_node_state() {
        let running = pod("a", "Running");
        let mut leaving = running.clone();
        leaving.metadata.deletion_timestamp = Some(time(1));
        let missing = |seconds| NodeState::Missing { since: Duration::from_secs(seconds) };
        assert_eq!(plan(&running, NodeState::None), Verdict::Keep);
        assert!(matches!(plan(&leaving, NodeState::None), Verdict::Delete(_)));
        assert_eq!(plan(&leaving, NodeState::Present), Verdict::Keep);
        assert!(matches!(plan(&leaving, NodeState::OutOfService), Verdict::Delete(_)));
        assert_eq!(plan(&running, NodeState::OutOfService), Verdict::Keep);
        assert_eq!(plan(&running, missing(10)), Verdict::RequeueAfter(Duration::from_secs(30)));
        assert!(matches!(plan(&running, missing(40)), Verdict::Delete(_)));
    }
}
