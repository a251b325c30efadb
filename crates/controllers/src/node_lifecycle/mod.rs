//! The node lifecycle loop. Watches nodes and their leases; for a node without heartbeats it sets the conditions to
//! unknown, marks its pods not ready, and adds taints that block new pods and evict running ones, limited by the
//! eviction rate of its zone.
//!
//! Nothing is polled: each node has one timer, which fires at the end of its grace period.

pub mod health;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::metrics::ComputedGauges;
use client::{ClientError, Patch};
use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use objects::coordination::v1::Lease;
use objects::core::v1::{Node, Pod, Taint};
use objects::meta::v1::Time;
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;
use tokio::time::Instant;

use self::health::{EvictionLimiter, EvictionRate, ZoneNodes};
use crate::shared::{metrics, node_facts, pod_facts};
use crate::{Settings, requeue};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-lifecycle-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:node-controller",
    workers: 8,
};

const LEASES: &str = "kube-node-lease";
/// Index of pods by node.
pub const BY_NODE: &str = "node";

/// A number of a zone.
type ZoneFigure = fn(ZoneNodes) -> f64;

struct NodeLifecycle {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    /// Time of each node's last heartbeat by the local clock: clocks of nodes may differ.
    last_heartbeat: Arc<Mutex<HashMap<String, Timestamp>>>,
    zones: Mutex<HashMap<String, EvictionLimiter>>,
}

/// Adds the index of pods by node.
pub fn index_by_node(pods: &Cache<Pod>) {
    pods.add_index(BY_NODE, |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        node.filter(|node| !node.is_empty()).into_iter().collect()
    });
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let last_heartbeat: Arc<Mutex<HashMap<String, Timestamp>>> = Arc::default();
    let nodes = ctx.cache::<Node>();
    let (times, clock, all) = (Arc::clone(&last_heartbeat), ctx.clock.clone(), nodes.clone());
    ctx.watch::<Node>(move |change| node_changed(change, &times, clock.now(), &all));
    let (times, clock, all) = (Arc::clone(&last_heartbeat), ctx.clock.clone(), nodes.clone());
    ctx.watch::<Lease>(move |change| {
        let meta = &change.object().metadata;
        if meta.namespace.as_deref() != Some(LEASES) || matches!(change, Change::Deleted(_)) {
            return Vec::new();
        }
        let Some(name) = meta.name.clone() else { return Vec::new() };
        times.lock().insert(name.clone(), clock.now());
        // A renewed lease moves the timer; only that of an unhealthy node enqueues.
        let silent = all.get("", &name).is_some_and(|node| health::is_evicting(&node));
        if silent { vec![Key::new("", &name)] } else { Vec::new() }
    });
    let (pods, all) = (ctx.cache::<Pod>(), nodes.clone());
    index_by_node(&pods);
    // A pod added to a node that is not ready is not ready either.
    ctx.watch::<Pod>(move |change| {
        let on = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node =
            on(change.object()).filter(|node| change.old().and_then(|old| on(old)).as_ref() != Some(node));
        let node =
            node.and_then(|name| all.get("", &name)).filter(|node| health::eviction_taint(node).is_some());
        node.map(|node| Key::of(&*node)).into_iter().collect()
    });
    if let Some(metrics) = metrics::of(ctx).map(|metrics| &metrics.nodes) {
        let gauges: [(&ComputedGauges, ZoneFigure); 3] = [
            (&metrics.zone_health, ZoneNodes::health),
            (&metrics.zone_size, |zone| zone.size() as f64),
            (&metrics.unhealthy, |zone| zone.unhealthy as f64),
        ];
        for (gauge, value) in gauges {
            let all = nodes.clone();
            gauge.compute(&ctx.tasks, move |rows| {
                for (name, zone) in health::zones(all.all().iter().map(AsRef::as_ref)) {
                    rows.with_label_values(&[name]).set(value(zone));
                }
            });
        }
    }
    Box::new(NodeLifecycle { nodes, pods, last_heartbeat, zones: Mutex::default() })
}

fn node_changed(
    change: &Change<Node>,
    last_heartbeat: &Mutex<HashMap<String, Timestamp>>,
    now: Timestamp,
    nodes: &Cache<Node>,
) -> Vec<Key> {
    let node = change.object();
    let name = node_facts::name(node).to_owned();
    let mut last_heartbeat = last_heartbeat.lock();
    match change {
        Change::Deleted(_) => {
            last_heartbeat.remove(&name);
            Vec::new()
        }
        Change::Added(_) => {
            last_heartbeat.entry(name).or_insert(now);
            vec![Key::of(&**node)]
        }
        Change::Updated { old, new } => {
            let beat = |node: &Node| {
                node_facts::condition(node, "Ready").and_then(|c| c.last_heartbeat_time.clone())
            };
            if beat(old) != beat(new) || old.metadata.uid != new.metadata.uid {
                last_heartbeat.insert(name, now);
            }
            let state = |node: &Node| {
                let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
                let conditions: Vec<_> =
                    conditions.into_iter().flatten().map(|c| (c.type_.clone(), c.status.clone())).collect();
                (conditions, node.spec.clone(), node.metadata.labels.clone())
            };
            if state(old) == state(new) {
                return Vec::new();
            }
            // When the first node recovers, evictions in halted zones may resume.
            if node_facts::is_ready(new) && !node_facts::is_ready(old) {
                return nodes.all().iter().map(|node| Key::of(&**node)).collect();
            }
            vec![Key::of(&**node)]
        }
    }
}

#[async_trait]
impl Loop for NodeLifecycle {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let started = Instant::now();
        let outcome = self.sync(key, ctx).await;
        if let Some(metrics) = metrics::of(ctx) {
            metrics.nodes.health_seconds.observe(started.elapsed().as_secs_f64());
        }
        outcome
    }
}

impl NodeLifecycle {
    async fn sync(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(node) = self.nodes.get_key(key) else { return Ok(Action::Done) };
        let mut node = node.as_ref().clone();
        let now = ctx.clock.now();
        self.mirror_labels(&node, ctx).await?;
        let last_heartbeat = *self.last_heartbeat.lock().entry(key.name.to_string()).or_insert(now);
        let left = health::silence_left(&node, last_heartbeat, now, Settings::of(ctx));
        let was_ready = node_facts::is_ready(&node);
        if let Some(conditions) = health::silenced(&node, now).filter(|_| !left.is_positive()) {
            node.status.get_or_insert_default().conditions = Some(conditions);
            node = ctx.client.update_status(&node).await?;
        }
        if let Some(taints) = health::schedule_taints(&node, now) {
            node = set_taints(ctx, &node, taints).await?;
        }
        if health::eviction_taint(&node).is_some() {
            if was_ready {
                let note = format!("Node {} status is now: NodeNotReady", key.name);
                ctx.recorder.normal(&node, "NodeNotReady", note);
            }
            self.mark_pods(&key.name, ctx).await?;
        }
        let wait = self.evict(node, ctx, now).await?;
        let timer = if left.is_positive() { left } else { SignedDuration::from_secs(50) };
        Ok(requeue(Some(wait.map_or(timer, |wait| wait.min(timer)))))
    }

    /// Adds or removes the NoExecute taint; returns the time to wait if the zone is rate-limited.
    async fn evict(
        &self,
        node: Node,
        ctx: &Context,
        now: Timestamp,
    ) -> Result<Option<SignedDuration>, ClientError> {
        let wanted = health::eviction_taint(&node);
        let zone = health::zone(&node);
        let everyone = self.nodes.all();
        let eviction_rate = health::eviction_rate(&zone, everyone.iter().map(AsRef::as_ref));
        let (wanted, wait) = match (wanted, eviction_rate) {
            (None, _) | (_, EvictionRate::Halted) => (None, None),
            // Swaps one taint for the other without delay: the pods are already being evicted.
            (Some(taint), _) if health::is_evicting(&node) => (Some(taint), None),
            (Some(taint), EvictionRate::Rate(rate)) => {
                match self.zones.lock().entry(zone.clone()).or_default().take(rate, now) {
                    Ok(()) => {
                        metrics::node_eviction(ctx, &zone);
                        (Some(taint), None)
                    }
                    Err(wait) => return Ok(Some(wait)),
                }
            }
        };
        if let Some(taints) = health::execute_taints(&node, wanted, now) {
            set_taints(ctx, &node, taints).await?;
        }
        Ok(wait)
    }

    async fn mark_pods(&self, node: &str, ctx: &Context) -> Result<(), ClientError> {
        let now = ctx.clock.now();
        let ready: Vec<_> =
            self.pods.indexed(BY_NODE, node).into_iter().filter(|pod| pod_facts::is_ready(pod)).collect();
        let marks = ready.iter().map(|pod| async move {
            let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
            let condition = json!({ "type": "Ready", "status": "False", "lastTransitionTime": Time(now) });
            let patch = Patch::Strategic(json!({
                "metadata": { "uid": pod.metadata.uid },
                "status": { "conditions": [condition] },
            }));
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            match ctx.client.patch::<Pod>(namespace, name, Some("status"), &patch).await {
                Ok(_) => {
                    ctx.recorder.warning(&**pod, "NodeNotReady", "Node is not ready");
                    Ok(())
                }
                Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
                Err(error) => Err(error),
            }
        });
        join_all(marks).await.into_iter().collect()
    }

    /// Copies deprecated labels from the current ones.
    async fn mirror_labels(&self, node: &Node, ctx: &Context) -> Result<(), ClientError> {
        let label = |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        let mut wanted = serde_json::Map::new();
        for part in ["os", "arch"] {
            let (new, old) = (format!("kubernetes.io/{part}"), format!("beta.kubernetes.io/{part}"));
            if let Some(value) = label(&new).filter(|value| label(&old) != Some(*value)) {
                wanted.insert(old, json!(value));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let patch = Patch::Strategic(json!({ "metadata": { "labels": wanted } }));
        ctx.client.patch::<Node>("", node_facts::name(node), None, &patch).await.map(|_| ())
    }
}

async fn set_taints(ctx: &Context, node: &Node, taints: Vec<Taint>) -> Result<Node, ClientError> {
    // A merge patch replaces the whole list, so it requires the observed version.
    let patch = Patch::Merge(json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": taints },
    }));
    ctx.client.patch("", node_facts::name(node), None, &patch).await
}
