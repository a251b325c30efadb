//! The taint eviction loop. Watches pods and nodes; deletes pods from nodes with a NoExecute taint they do not tolerate,
//! or no longer tolerate.

use std::collections::HashMap;

use async_trait::async_trait;
use base::clock::time_left;
use client::{ClientError, Patch, delete_options};
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Node, Pod, Taint, Toleration};
use objects::meta::v1::Time;
use parking_lot::Mutex;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::node_lifecycle::{BY_NODE, index_by_node};
use crate::requeue;
use crate::shared::{metrics, node_facts, pod_facts};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "taint-eviction-controller",
    resource: "pods",
    identity: "system:serviceaccount:kube-system:node-controller",
    workers: 8,
};

struct TaintEviction {
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    /// Start of the pending evictions, by pod uid.
    since: Mutex<HashMap<String, Timestamp>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let nodes = ctx.cache::<Node>();
    let pods = ctx.cache::<Pod>();
    index_by_node(&pods);
    let all = pods.clone();
    ctx.watch::<Node>(move |change| {
        let taints = |node: &Node| drives_away(node).cloned().collect::<Vec<_>>();
        let now = taints(change.object());
        let before = change.old().map(|old| taints(old)).unwrap_or_default();
        if now == before {
            return Vec::new();
        }
        let pods = all.indexed(BY_NODE, node_facts::name(change.object()));
        pods.iter().map(|pod| Key::of(&**pod)).collect()
    });
    let all = nodes.clone();
    ctx.watch::<Pod>(move |change| {
        let pod = change.object();
        let node =
            pod.spec.as_ref().and_then(|spec| all.get("", spec.node_name.as_deref().unwrap_or_default()));
        let concerned = node.is_some_and(|node| drives_away(&node).next().is_some());
        let unchanged = change.old().is_some_and(|old| {
            let state = |pod: &Pod| {
                let spec = pod.spec.as_ref();
                (spec.and_then(|spec| spec.node_name.clone()), spec.and_then(|spec| spec.tolerations.clone()))
            };
            state(old) == state(pod) && old.metadata.uid == pod.metadata.uid
        });
        if concerned && !unchanged { vec![Key::of(&**pod)] } else { Vec::new() }
    });
    Box::new(TaintEviction { pods, nodes, since: Mutex::default() })
}

fn drives_away(node: &Node) -> impl Iterator<Item = &Taint> {
    node_facts::taints(node).iter().filter(|taint| taint.effect == "NoExecute")
}

#[async_trait]
impl Loop for TaintEviction {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(pod) = self.pods.get_key(key) else { return Ok(Action::Done) };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let spec = pod.spec.as_ref();
        let node = spec.and_then(|spec| self.nodes.get("", spec.node_name.as_deref().unwrap_or_default()));
        let taints: Vec<Taint> = node.map(|node| drives_away(&node).cloned().collect()).unwrap_or_default();
        let tolerations = spec.and_then(|spec| spec.tolerations.clone()).unwrap_or_default();
        let now = ctx.clock.now();
        let full = format!("{}/{}", key.namespace, key.name);
        let stays = match plan(&taints, &tolerations) {
            Some(stays) if !pod_facts::is_deleting(&pod) => stays,
            _ => {
                if self.since.lock().remove(&uid).is_some() && !pod_facts::is_deleting(&pod) {
                    ctx.recorder.normal(
                        &*pod,
                        "TaintManagerEviction",
                        format!("Cancelling deletion of Pod {full}"),
                    );
                }
                return Ok(Action::Done);
            }
        };
        let since = *self.since.lock().entry(uid.clone()).or_insert(now);
        let left = time_left(stays, since, now);
        if left.is_positive() {
            return Ok(requeue(Some(left)));
        }
        ctx.recorder.normal(&*pod, "TaintManagerEviction", format!("Marking for deletion Pod {full}"));
        evict(&pod, ctx, now).await?;
        metrics::taint_eviction(ctx, left.abs());
        self.since.lock().remove(&uid);
        Ok(Action::Done)
    }
}

async fn evict(pod: &Pod, ctx: &Context, now: Timestamp) -> Result<(), ClientError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
        "lastTransitionTime": Time(now),
    });
    let patch = Patch::Strategic(json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "conditions": [condition] },
    }));
    let marked = ctx.client.patch::<Pod>(namespace, name, Some("status"), &patch).await.map(|_| ());
    let deleted = match marked {
        Ok(()) => {
            let options = delete_options(pod.metadata.uid.as_deref(), None);
            ctx.client.delete::<Pod>(namespace, name, &options).await
        }
        failed => failed,
    };
    match deleted {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Time for which the pod may stay; `None` if unlimited.
fn plan(taints: &[Taint], tolerations: &[Toleration]) -> Option<SignedDuration> {
    if taints.is_empty() {
        return None;
    }
    let mut shortest: Option<i64> = None;
    for taint in taints {
        let mut matching =
            tolerations.iter().filter(|toleration| node_facts::tolerates(toleration, taint)).peekable();
        if matching.peek().is_none() {
            return Some(SignedDuration::ZERO);
        }
        for seconds in matching.filter_map(|toleration| toleration.toleration_seconds) {
            shortest = Some(shortest.map_or(seconds, |known| known.min(seconds)));
        }
    }
    shortest.map(|seconds| SignedDuration::from_secs(seconds.max(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_toleration_decides_eviction() {
        let taint = |key: &str| Taint { key: key.into(), effect: "NoExecute".into(), ..Taint::default() };
        let toleration = |key: &str, seconds| Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Toleration::default()
        };
        let secs = SignedDuration::from_secs;
        for (taints, tolerations, expected) in [
            (vec![], vec![], None),
            (vec![taint("a")], vec![], Some(secs(0))),
            (vec![taint("a")], vec![toleration("a", None)], None),
            (vec![taint("a")], vec![toleration("a", Some(300))], Some(secs(300))),
            (vec![taint("a")], vec![toleration("a", Some(-5))], Some(secs(0))),
            (vec![taint("a"), taint("b")], vec![toleration("a", Some(300))], Some(secs(0))),
            (
                vec![taint("a"), taint("b")],
                vec![toleration("a", Some(300)), toleration("b", Some(9))],
                Some(secs(9)),
            ),
            (
                vec![taint("a"), taint("b")],
                vec![toleration("a", None), toleration("b", Some(9))],
                Some(secs(9)),
            ),
        ] {
            assert_eq!(plan(&taints, &tolerations), expected, "{taints:?} {tolerations:?}");
        }
    }
}
