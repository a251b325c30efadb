//! The pod garbage collector. Watches pods and nodes; deletes pods nobody else will.
//!
//! Invariant: no pod stays that is bound to a node that is gone or out of service, that was deleted before it was bound,
//! or that finished while very many others have.

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
use crate::pod_facts;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "pod-garbage-collector-controller",
    resource: "pods",
    identity: "system:serviceaccount:kube-system:pod-garbage-collector",
    workers: 2,
};

/// How long a node must have been missing: it may only not have been seen yet.
const QUARANTINE: Duration = Duration::from_secs(40);
const BY_NODE: &str = "node";
const FINISHED_INDEX: &str = "finished";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

struct PodGarbage {
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    missing: Mutex<HashMap<String, Instant>>,
}

/// The key under which finished pods are counted.
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

/// What is known of the node of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    None,
    There,
    OutOfService,
    Missing { since: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Stays,
    /// Its node may yet show up.
    LookAgain(Duration),
    /// It goes at once; if it has not finished, it says first that its end was not its own doing.
    Goes(&'static str),
}

fn plan(pod: &Pod, host: Host) -> Verdict {
    match host {
        Host::None if pod_facts::is_deleting(pod) => Verdict::Goes("PodGC: the pod was never bound"),
        Host::OutOfService if pod_facts::is_deleting(pod) => Verdict::Goes("PodGC: node is out of service"),
        Host::Missing { since } if since >= QUARANTINE => Verdict::Goes("PodGC: node no longer exists"),
        Host::Missing { since } => Verdict::LookAgain(QUARANTINE.saturating_sub(since)),
        Host::None | Host::There | Host::OutOfService => Verdict::Stays,
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
            None => Host::None,
            Some((name, None)) => Host::Missing { since: self.missing_since(name) },
            Some((_, Some(node))) if is_out_of_service(node) => Host::OutOfService,
            Some(_) => Host::There,
        };
        if let Some((name, Some(_))) = &node {
            self.missing.lock().remove(*name);
        }
        match plan(&pod, host) {
            Verdict::Stays => Ok(Action::Done),
            Verdict::LookAgain(wait) => Ok(Action::RequeueAfter(wait)),
            Verdict::Goes(why) => {
                if let (Host::Missing { .. }, Some((name, _))) = (host, node) {
                    // The cache may be behind; the pod's end cannot be undone.
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
        // Nodes that came back, or whose pods are gone, are of no interest.
        missing.retain(|name, _| {
            self.nodes.get("", name).is_none() && !self.pods.indexed(BY_NODE, name).is_empty()
        });
        missing.entry(node.to_owned()).or_insert_with(Instant::now).elapsed()
    }

    async fn delete(
        &self,
        pod: &Arc<Pod>,
        host: Host,
        why: &str,
        ctx: &Context,
    ) -> Result<Action, LoopError> {
        let meta = &pod.metadata;
        let (ns, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        if !pod_facts::is_finished(pod) {
            let mut status = json!({"phase": "Failed"});
            if host != Host::None {
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
                outcome => outcome?,
            };
        }
        remove(pod, ctx).await
    }

    async fn delete_finished(&self, ctx: &Context) -> Result<Action, LoopError> {
        let mut finished = self.pods.indexed(FINISHED_INDEX, "yes");
        let Some(kept) = Settings::of(ctx).terminated_pods else { return Ok(Action::Done) };
        let surplus = finished.len().saturating_sub(kept);
        if surplus > 0 {
            finished.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone()));
            for pod in finished.iter().take(surplus) {
                remove(pod, ctx).await?;
            }
        }
        Ok(Action::Done)
    }
}

async fn remove(pod: &Pod, ctx: &Context) -> Result<Action, LoopError> {
    let meta = &pod.metadata;
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: meta.uid.clone(), ..Preconditions::default() }),
        ..DeleteOptions::default()
    };
    let (ns, name) =
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    match ctx.client.delete::<Pod>(ns, name, &options).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
        _ => Ok(Action::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{pod, time};

    #[test]
    fn verdicts() {
        let running = pod("a", "Running");
        let mut leaving = running.clone();
        leaving.metadata.deletion_timestamp = Some(time(1));
        let missing = |seconds| Host::Missing { since: Duration::from_secs(seconds) };
        assert_eq!(plan(&running, Host::None), Verdict::Stays);
        assert!(matches!(plan(&leaving, Host::None), Verdict::Goes(_)));
        assert_eq!(plan(&leaving, Host::There), Verdict::Stays);
        assert!(matches!(plan(&leaving, Host::OutOfService), Verdict::Goes(_)));
        assert_eq!(plan(&running, Host::OutOfService), Verdict::Stays);
        assert_eq!(plan(&running, missing(10)), Verdict::LookAgain(Duration::from_secs(30)));
        assert!(matches!(plan(&running, missing(40)), Verdict::Goes(_)));
    }
}
