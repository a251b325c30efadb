//! Loops about nodes: lifecycle, taint eviction, IPAM, TTL.

use anyhow::Result;
use client::Patch;
use objects::core::v1::{Node, Pod};
use serde_json::json;
use testkit::eventually;

use crate::world::{PATIENCE, World};

async fn ready(world: &World, node: &str, status: &str) -> Result<()> {
    let now = world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let patch = Patch::Strategic(json!({ "status": { "conditions": [{
        "type": "Ready", "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now,
    }] } }));
    world.client.patch::<Node>("", node, Some("status"), &patch).await?;
    Ok(())
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints
        .map(|taint| format!("{}:{}", taint.key.trim_start_matches("node.kubernetes.io/"), taint.effect))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unhealthy_node_is_tainted_evicted_and_recovers() -> Result<()> {
    let world =
        World::start(&["node-lifecycle-controller", "taint-eviction-controller", "ttl-controller"]).await?;
    for node in ["sick", "well"] {
        world.node(node).await?;
        ready(&world, node, "True").await?;
    }
    let pod = |name: &str, tolerations| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": "sick", "tolerations": tolerations, "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": "i" }],
            },
        })
    };
    let forever = json!([
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute" },
        { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute" },
    ]);
    let at_once = json!([
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 },
        { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 },
    ]);
    world.create::<Pod>(pod("stays", forever)).await?;
    world.create::<Pod>(pod("leaves", at_once)).await?;
    world.phase("stays", "Running", 0).await?;
    ready(&world, "sick", "False").await?;
    let node = async || taints(&world.client.get::<Node>("", "sick").await.expect("a node"));
    let tainted = |taints: &Vec<String>| *taints == ["not-ready:NoSchedule", "not-ready:NoExecute"];
    eventually("tainted", PATIENCE, node, tainted).await;
    let left = async || {
        world.finish_deletion().await.expect("pods that end");
        world.pod_names().await
    };
    eventually("one pod is evicted", PATIENCE, left, |names| *names == ["stays"]).await;
    let stays = async || world.get::<Pod>("stays").await;
    let not_ready = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "False")
    };
    eventually("the other is not ready", PATIENCE, stays, not_ready).await;
    ready(&world, "sick", "True").await?;
    eventually("healthy again", PATIENCE, node, Vec::is_empty).await;
    let annotated = async || world.client.get::<Node>("", "well").await.expect("a node").metadata;
    let ttl = |meta: &objects::meta::v1::ObjectMeta| {
        let has = meta.annotations.as_ref().and_then(|all| all.get("node.alpha.kubernetes.io/ttl"));
        let mirrored = meta.labels.as_ref().and_then(|all| all.get("beta.kubernetes.io/os"));
        has.is_some_and(|ttl| ttl == "0") && mirrored.is_some_and(|os| os == "linux")
    };
    eventually("labels and TTL", PATIENCE, annotated, ttl).await;
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_with_the_longest_toleration_leave_taint_eviction_working() -> Result<()> {
    let world = World::start(&["taint-eviction-controller"]).await?;
    world.node("sick").await?;
    let taint = json!({ "spec": { "taints": [{ "key": "broken", "effect": "NoExecute" }] } });
    let pod = |name: &str, seconds: i64| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": "sick", "terminationGracePeriodSeconds": 0,
                "tolerations": [
                    { "key": "broken", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds },
                ],
                "containers": [{ "name": "main", "image": "i" }],
            },
        })
    };
    // More than the loop has workers.
    let names: Vec<String> = (0..16).map(|nth| format!("longest-{nth:02}")).collect();
    for name in &names {
        world.create::<Pod>(pod(name, i64::MAX)).await?;
    }
    world.client.patch::<Node>("", "sick", None, &Patch::Merge(taint)).await?;
    for nth in 0..3 {
        world.create::<Pod>(pod(&format!("shortest-{nth}"), 0)).await?;
        let left = async || {
            world.finish_deletion().await.expect("pods that end");
            world.pod_names().await
        };
        eventually("pods are still evicted", PATIENCE, left, |left| *left == names).await;
    }
    world.end().await
}
