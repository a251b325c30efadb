//! The daemon set loop.

use anyhow::Result;
use client::Patch;
use objects::apps::v1::{DaemonSet, DaemonSetStatus};
use objects::core::v1::{Node, Pod};
use serde_json::json;
use testkit::eventually;

use crate::world::{PATIENCE, World, template};

async fn status(world: &World) -> DaemonSetStatus {
    world.get::<DaemonSet>("agent").await.status.unwrap_or_default()
}

/// A node without the taint that new nodes have until they are ready.
async fn ready_node(world: &World, name: &str) -> Result<()> {
    world.node(name).await?;
    let patch = Patch::Merge(json!({ "spec": { "taints": null } }));
    world.client.patch::<Node>("", name, None, &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_has_one_pod_and_rolling_update_completes() -> Result<()> {
    let mut world = World::start(&["daemonset-controller"]).await?;
    for name in ["n0", "n1"] {
        ready_node(&world, name).await?;
    }
    world
        .create::<DaemonSet>(json!({
            "metadata": { "name": "agent" },
            "spec": { "selector": { "matchLabels": { "app": "agent" } }, "template": template("agent") },
        }))
        .await?;
    world.wait_for_pods(2).await;
    ready_node(&world, "n2").await?;
    world.wait_for_pods(3).await;
    world.restart_loops().await?;
    let tend = async || {
        world.finish_deletion().await.expect("pods that end");
        for pod in world.pods().await {
            if pod.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Running") {
                let _ = world.phase(pod.metadata.name.as_deref().unwrap_or_default(), "Running", 0).await;
            }
        }
        status(&world).await
    };
    eventually("all ready", PATIENCE, tend, |status| status.number_ready == 3).await;
    let image = json!([{ "name": "main", "image": "image:2" }]);
    world
        .patch::<DaemonSet>("agent", json!({ "spec": { "template": { "spec": { "containers": image } } } }))
        .await?;
    let rolled = |status: &DaemonSetStatus| {
        status.observed_generation == Some(2)
            && status.updated_number_scheduled == Some(3)
            && status.number_ready == 3
    };
    eventually("rolled", PATIENCE, tend, rolled).await;
    assert_eq!(world.pods().await.len(), 3);

    // An untolerated taint evicts the pod and keeps it off.
    let taint = json!([{ "key": "gone", "effect": "NoExecute" }]);
    let patch = Patch::Merge(json!({ "spec": { "taints": taint } }));
    world.client.patch::<Node>("", "n2", None, &patch).await?;
    eventually("two left", PATIENCE, tend, |status| status.desired_number_scheduled == 2).await;
    world.wait_for_pods(2).await;
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_surge_or_wait_for_manual_deletion() -> Result<()> {
    let world = World::start(&["daemonset-controller"]).await?;
    ready_node(&world, "n0").await?;
    world
        .create::<DaemonSet>(json!({
            "metadata": { "name": "agent" },
            "spec": {
                "selector": { "matchLabels": { "app": "agent" } }, "template": template("agent"),
                "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            },
        }))
        .await?;
    let image = |image: &str| {
        let containers = json!([{ "name": "main", "image": image }]);
        json!({ "spec": { "template": { "spec": { "containers": containers } } } })
    };
    let images = async || {
        world.finish_deletion().await.expect("pods that end");
        let image = |pod: Pod| pod.spec.and_then(|spec| spec.containers.into_iter().next()?.image);
        let mut images: Vec<String> = world.pods().await.into_iter().filter_map(image).collect();
        images.sort();
        images
    };
    let old = world.wait_for_pods(1).await.remove(0);
    world.phase(old.metadata.name.as_deref().unwrap_or_default(), "Running", 0).await?;
    eventually("ready", PATIENCE, async || status(&world).await, |status| status.number_ready == 1).await;

    // The old one stays until the new one is ready.
    world.patch::<DaemonSet>("agent", image("image:2")).await?;
    eventually("side by side", PATIENCE, images, |images| *images == ["image:1", "image:2"]).await;
    let new = world.pods().await.into_iter().find(|pod| pod.metadata.uid != old.metadata.uid);
    let new = new.and_then(|pod| pod.metadata.name).unwrap_or_default();
    world.phase(&new, "Running", 0).await?;
    eventually("the new one alone", PATIENCE, images, |images| *images == ["image:2"]).await;

    // OnDelete: a pod stays until it is deleted manually.
    let by_hand = json!({ "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } } });
    world.patch::<DaemonSet>("agent", by_hand).await?;
    world.patch::<DaemonSet>("agent", image("image:3")).await?;
    let generation = world.get::<DaemonSet>("agent").await.metadata.generation;
    let seen = |status: &DaemonSetStatus| {
        status.observed_generation == generation && status.updated_number_scheduled.unwrap_or(0) == 0
    };
    eventually("the change is seen", PATIENCE, async || status(&world).await, seen).await;
    world.client.delete::<Pod>("default", &new, &client::delete_options(None, None)).await?;
    eventually("the next one is new", PATIENCE, images, |images| *images == ["image:3"]).await;
    world.end().await
}
