//! Deployments, replica sets and pods.

use anyhow::Result;
use client::{ListOptions, Patch};
use objects::apps::v1::{Deployment, ReplicaSet};
use objects::core::v1::{Pod, ReplicationController};
use objects::events::v1::Event;
use serde_json::json;
use testkit::eventually;

use crate::world::{PATIENCE, World};

const LOOPS: &str = "deployment,replicaset,replicationcontroller,serviceaccount";

pub fn web(replicas: i32) -> Deployment {
    let labels = json!({"app": "web"});
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "example.com/web:1"}]},
            },
        },
    }))
    .expect("a deployment")
}

/// Total, updated and available pods by the deployment's status; `None` while it is of an older spec.
async fn available(world: &World) -> (i32, i32, i32) {
    world.run_pods("default").await;
    let web = world.admin.get::<Deployment>("default", "web").await.expect("there");
    let status = web.status.unwrap_or_default();
    if status.observed_generation != web.metadata.generation {
        return (0, 0, 0);
    }
    let count = |count: Option<i32>| count.unwrap_or(0);
    (count(status.replicas), count(status.updated_replicas), count(status.available_replicas))
}

async fn settles(world: &World, replicas: i32) {
    let want = (replicas, replicas, replicas);
    eventually("the deployment settles", PATIENCE, async || available(world).await, |seen| *seen == want)
        .await;
    let pods = eventually(
        "as many pods as asked for",
        PATIENCE,
        async || world.pods("default").await.len(),
        |count| i32::try_from(*count) == Ok(replicas),
    );
    pods.await;
}

async fn set_image(world: &World, image: &str) -> Result<()> {
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    world.admin.patch::<Deployment>("default", "web", None, &Patch::Strategic(patch)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployment_with_loop_permissions_scales_and_updates() -> Result<()> {
    let world = World::inside(LOOPS).await?;
    world.admin.create("default", &web(3)).await?;
    settles(&world, 3).await;

    let scale = Patch::Merge(json!({"spec": {"replicas": 5}}));
    world.admin.patch::<Deployment>("default", "web", None, &scale).await?;
    settles(&world, 5).await;

    set_image(&world, "example.com/web:2").await?;
    let updated = async || {
        let seen = available(&world).await;
        let pods = world.pods("default").await;
        let image = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone());
        (seen, pods.iter().filter(|pod| image(pod).as_deref() == Some("example.com/web:2")).count())
    };
    eventually("all pods are new", PATIENCE, updated, |seen| *seen == ((5, 5, 5), 5)).await;
    let sets = world.admin.list::<ReplicaSet>("default", &ListOptions::default()).await?;
    assert_eq!(sets.items.len(), 2);

    let deployment = async || world.admin.get::<Deployment>("default", "web").await.expect("there");
    let done = eventually("the rollout is complete", PATIENCE, deployment, |deployment| {
        let conditions = deployment.status.as_ref().and_then(|status| status.conditions.as_deref());
        let reasons =
            conditions.unwrap_or_default().iter().filter_map(|condition| condition.reason.as_deref());
        reasons.into_iter().any(|reason| reason == "NewReplicaSetAvailable")
    })
    .await;
    assert_eq!(done.metadata.annotations.expect("some")["deployment.kubernetes.io/revision"], "2");

    let events = async || {
        let list = world.admin.list::<Event>("default", &ListOptions::default()).await.expect("lists").items;
        list.into_iter().filter_map(|event| event.reason).collect::<Vec<_>>()
    };
    eventually("events", PATIENCE, events, |reasons| {
        reasons.iter().any(|reason| reason == "ScalingReplicaSet")
            && reasons.iter().any(|reason| reason == "SuccessfulCreate")
    })
    .await;
    world.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_loops_complete_without_duplicates() -> Result<()> {
    let mut world = World::outside().await?;
    world.start_loops(LOOPS)?;
    world.admin.create("default", &web(30)).await?;
    for round in 0..6 {
        let some = round * 4;
        let count = async || world.pods("default").await.len();
        eventually("some pods", PATIENCE, count, |count| *count >= some.min(20)).await;
        world.kill_loops();
        if round == 3 {
            set_image(&world, "example.com/web:2").await?;
        }
        world.start_loops(LOOPS)?;
        world.run_pods("default").await;
    }
    settles(&world, 30).await;
    let sets = world.admin.list::<ReplicaSet>("default", &ListOptions::default()).await?;
    assert_eq!(sets.items.len(), 2, "no duplicate replica set");
    world.stop().await
}

/// Two managers at once, each with its own cache, unaware of the other's writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_caches_and_conflicts_converge() -> Result<()> {
    let mut world = World::outside().await?;
    world.start_loops(LOOPS)?;
    let first = world.loops.clone();
    world.start_loops(LOOPS)?;
    world.admin.create("default", &web(10)).await?;
    settles(&world, 10).await;
    first.drain(PATIENCE).await?;
    settles(&world, 10).await;
    world.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replication_controllers_adopt_release_and_replace() -> Result<()> {
    let world = World::inside(LOOPS).await?;
    let orphan: Pod = serde_json::from_value(json!({
        "metadata": {"name": "orphan", "labels": {"app": "old"}},
        "spec": {"containers": [{"name": "c", "image": "example.com/x"}]},
    }))?;
    world.admin.create("default", &orphan).await?;
    let controller: ReplicationController = serde_json::from_value(json!({
        "metadata": {"name": "old", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"app": "old"},
            "template": {
                "metadata": {"labels": {"app": "old"}},
                "spec": {"containers": [{"name": "c", "image": "example.com/x"}]},
            },
        },
    }))?;
    world.admin.create("default", &controller).await?;
    let owned = async || {
        world.run_pods("default").await;
        let pods = world.pods("default").await;
        pods.iter().filter(|pod| runtime::controller_of(&pod.metadata).is_some()).count()
    };
    eventually("two pods, one of them adopted", PATIENCE, owned, |count| *count == 2).await;
    let adopted: Pod = world.admin.get("default", "orphan").await?;
    assert!(runtime::controller_of(&adopted.metadata).is_some());

    let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    world.admin.patch::<Pod>("default", "orphan", None, &relabel).await?;
    let released = async || {
        let pod: Pod = world.admin.get("default", "orphan").await.expect("there");
        (runtime::controller_of(&pod.metadata).is_some(), owned().await)
    };
    eventually("released and replaced", PATIENCE, released, |seen| *seen == (false, 2)).await;
    world.stop().await
}

/// Images of all pods, terminating ones included, without duplicates.
async fn images(world: &World) -> Vec<String> {
    let pods = world.admin.list::<Pod>("default", &ListOptions::default()).await.expect("lists").items;
    let image = |pod: Pod| pod.spec.and_then(|spec| spec.containers.into_iter().next()?.image);
    let mut images: Vec<String> = pods.into_iter().filter_map(image).collect();
    images.sort();
    images.dedup();
    images
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollout_pause_recreate_and_deadline() -> Result<()> {
    let mut world = World::outside().await?;
    world.start_loops(LOOPS)?;
    world.admin.create("default", &web(2)).await?;
    settles(&world, 2).await;

    // While paused, a new template changes nothing, not even after a restart of the loops.
    let pause = |paused: bool| Patch::Merge(json!({"spec": {"paused": paused}}));
    world.admin.patch::<Deployment>("default", "web", None, &pause(true)).await?;
    set_image(&world, "example.com/web:2").await?;
    let seen = async || available(&world).await;
    eventually("the change is seen", PATIENCE, seen, |seen| *seen == (2, 0, 2)).await;
    world.kill_loops();
    world.start_loops(LOOPS)?;
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    world.admin.patch::<Deployment>("default", "web", None, &scale).await?;
    let seen = async || available(&world).await;
    eventually("the paused deployment scales", PATIENCE, seen, |seen| *seen == (3, 0, 3)).await;
    assert_eq!(images(&world).await, ["example.com/web:1"]);
    world.admin.patch::<Deployment>("default", "web", None, &pause(false)).await?;
    settles(&world, 3).await;

    // Recreate: new pods are created when the old ones are deleted.
    let recreate = Patch::Merge(json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}}));
    world.admin.patch::<Deployment>("default", "web", None, &recreate).await?;
    set_image(&world, "example.com/web:3").await?;
    let rolled = async || {
        let before = images(&world).await;
        assert!(before.len() <= 1, "{before:?} run side by side");
        available(&world).await;
        before
    };
    eventually("all are new", PATIENCE, rolled, |images| *images == ["example.com/web:3"]).await;
    settles(&world, 3).await;

    // The pods of this one never run.
    let deadline = Patch::Merge(json!({"spec": {"progressDeadlineSeconds": 1}}));
    world.admin.patch::<Deployment>("default", "web", None, &deadline).await?;
    settles(&world, 3).await;
    set_image(&world, "example.com/web:4").await?;
    let progress = async || {
        let web = world.admin.get::<Deployment>("default", "web").await.expect("there");
        let conditions = web.status.and_then(|status| status.conditions).unwrap_or_default();
        let progress = conditions.into_iter().find(|condition| condition.type_ == "Progressing");
        progress.map(|condition| (condition.status, condition.reason.unwrap_or_default())).unwrap_or_default()
    };
    eventually("the progress deadline is exceeded", PATIENCE, progress, |(status, reason)| {
        status == "False" && reason == "ProgressDeadlineExceeded"
    })
    .await;
    settles(&world, 3).await;
    eventually("the rollout completes in the end", PATIENCE, progress, |(status, reason)| {
        status == "True" && reason == "NewReplicaSetAvailable"
    })
    .await;
    world.stop().await
}
