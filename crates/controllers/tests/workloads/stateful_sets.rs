//! The stateful set loop.

use anyhow::Result;
use client::ListOptions;
use objects::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use objects::core::v1::PersistentVolumeClaim;
use serde_json::json;
use testkit::eventually;

use crate::world::{PATIENCE, World, template};

async fn status(world: &World) -> StatefulSetStatus {
    world.get::<StatefulSet>("web").await.status.unwrap_or_default()
}

/// Runs new pods and terminates deleted ones, until `done` returns true.
async fn tend(world: &World, what: &str, done: impl Fn(&StatefulSetStatus) -> bool) -> Result<()> {
    let step = async || {
        world.finish_deletion().await.expect("pods that end");
        for pod in world.pods().await {
            if pod.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Running") {
                let _ = world.phase(pod.metadata.name.as_deref().unwrap_or_default(), "Running", 0).await;
            }
        }
        status(world).await
    };
    eventually(what, PATIENCE, step, done).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordered_set_scales_and_rolls_through_restarts() -> Result<()> {
    let mut world = World::start(&["statefulset-controller"]).await?;
    world.create::<StatefulSet>(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 3,
            "serviceName": "web",
            "selector": { "matchLabels": { "app": "web" } },
            "template": template("web"),
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
            }],
        },
    })).await?;
    eventually(
        "the first pod alone",
        PATIENCE,
        async || world.pod_names().await,
        |names| *names == ["web-0"],
    )
    .await;
    world.restart_loops().await?;
    tend(&world, "all ready", |status| status.ready_replicas == Some(3)).await?;
    assert_eq!(world.pod_names().await, ["web-0", "web-1", "web-2"]);
    let claims = world.client.list::<PersistentVolumeClaim>("default", &ListOptions::default()).await?;
    let names: Vec<_> = claims.items.iter().filter_map(|claim| claim.metadata.name.as_deref()).collect();
    assert_eq!(names, ["data-web-0", "data-web-1", "data-web-2"]);

    let image = json!([{ "name": "main", "image": "image:2" }]);
    world
        .patch::<StatefulSet>("web", json!({ "spec": { "template": { "spec": { "containers": image } } } }))
        .await?;
    let rolled = |status: &StatefulSetStatus| {
        status.updated_replicas == Some(3)
            && status.ready_replicas == Some(3)
            && status.current_revision == status.update_revision
    };
    eventually(
        "a new revision",
        PATIENCE,
        async || status(&world).await,
        |s| s.current_revision != s.update_revision,
    )
    .await;
    world.restart_loops().await?;
    tend(&world, "rolled", rolled).await?;
    let images: Vec<_> =
        world.pods().await.into_iter().filter_map(|pod| pod.spec?.containers[0].image.clone()).collect();
    assert_eq!(images, ["image:2"; 3]);
    let revisions = world.client.list::<ControllerRevision>("default", &ListOptions::default()).await?;
    assert_eq!(revisions.items.len(), 2);

    world.patch::<StatefulSet>("web", json!({ "spec": { "replicas": 1 } })).await?;
    tend(&world, "shrunk", |status| status.replicas == 1).await?;
    assert_eq!(world.pod_names().await, ["web-0"]);
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_set_partition_and_retention_policy_apply() -> Result<()> {
    let mut world = World::start(&[
        "statefulset-controller",
        "garbage-collector-controller",
        "persistentvolumeclaim-protection-controller",
    ])
    .await?;
    world.create::<StatefulSet>(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 3,
            "ordinals": { "start": 5 },
            "serviceName": "web",
            "podManagementPolicy": "Parallel",
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 1 } },
            "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Delete", "whenDeleted": "Retain" },
            "selector": { "matchLabels": { "app": "web" } },
            "template": template("web"),
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
            }],
        },
    })).await?;
    // Parallel: no pod waits for another to be ready. The partition counts from the first ordinal.
    world.wait_for_pods(3).await;
    assert_eq!(world.pod_names().await, ["web-5", "web-6", "web-7"]);
    tend(&world, "all ready", |status| status.ready_replicas == Some(3)).await?;

    let image = json!([{ "name": "main", "image": "image:2" }]);
    world
        .patch::<StatefulSet>("web", json!({ "spec": { "template": { "spec": { "containers": image } } } }))
        .await?;
    world.restart_loops().await?;
    tend(&world, "rolled down to the partition", |status| {
        status.updated_replicas == Some(2) && status.ready_replicas == Some(3)
    })
    .await?;
    let images: Vec<_> =
        world.pods().await.into_iter().filter_map(|pod| pod.spec?.containers[0].image.clone()).collect();
    assert_eq!(images, ["image:1", "image:2", "image:2"]);

    world.patch::<StatefulSet>("web", json!({ "spec": { "replicas": 1 } })).await?;
    tend(&world, "shrunk", |status| status.replicas == 1).await?;
    let claims = async || {
        let list = world.client.list::<PersistentVolumeClaim>("default", &ListOptions::default()).await;
        let items = list.expect("claims").items;
        items.into_iter().filter_map(|claim| claim.metadata.name).collect::<Vec<_>>()
    };
    eventually("claims are deleted with their pods", PATIENCE, claims, |names| *names == ["data-web-5"])
        .await;
    world
        .client
        .delete::<StatefulSet>(
            "default",
            "web",
            &client::delete_options(None, Some(client::Propagation::Background)),
        )
        .await?;
    let left = async || {
        world.finish_deletion().await.expect("pods that end");
        world.pod_names().await
    };
    eventually("all pods are deleted", PATIENCE, left, Vec::is_empty).await;
    assert_eq!(claims().await, ["data-web-5"], "claims outlive the deleted set");
    world.end().await
}
