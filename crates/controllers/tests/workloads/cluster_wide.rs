//! Smaller loops: disruption budgets, aggregation of cluster roles, expiry of finished jobs.

use anyhow::Result;
use client::Patch;
use objects::batch::v1::Job;
use objects::core::v1::Pod;
use objects::policy::v1::PodDisruptionBudget;
use objects::rbac::v1::ClusterRole;
use serde_json::json;
use testkit::eventually;

use crate::world::{PATIENCE, World, template};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_roles_and_finished_jobs_are_reconciled() -> Result<()> {
    let world = World::start(&[
        "disruption-controller",
        "clusterrole-aggregation-controller",
        "ttl-after-finished-controller",
    ])
    .await?;
    world
        .create::<PodDisruptionBudget>(json!({
            "metadata": { "name": "budget" },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "a" } } },
        }))
        .await?;
    for name in ["p0", "p1"] {
        let mut pod = template("a");
        pod["metadata"]["name"] = json!(name);
        world.create::<Pod>(pod).await?;
        world.phase(name, "Running", 0).await?;
    }
    let allowed = async || {
        let status = world.get::<PodDisruptionBudget>("budget").await.status.unwrap_or_default();
        (status.current_healthy, status.disruptions_allowed)
    };
    eventually("one disruption is allowed", PATIENCE, allowed, |status| *status == (Some(2), Some(1))).await;

    let rule = |verb: &str| json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] }]);
    world
        .create_in_cluster::<ClusterRole>(json!({
            "metadata": { "name": "part", "labels": { "join": "me" } }, "rules": rule("get"),
        }))
        .await?;
    world
        .create_in_cluster::<ClusterRole>(json!({
            "metadata": { "name": "whole" },
            "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { "join": "me" } }] },
        }))
        .await?;
    let verbs = async || {
        let role = world.client.get::<ClusterRole>("", "whole").await.expect("a role");
        role.rules.unwrap_or_default().into_iter().flat_map(|rule| rule.verbs).collect::<Vec<_>>()
    };
    eventually("joined", PATIENCE, verbs, |verbs| *verbs == ["get"]).await;
    let patch = Patch::Merge(json!({ "rules": rule("list") }));
    world.client.patch::<ClusterRole>("", "part", None, &patch).await?;
    eventually("aggregated again", PATIENCE, verbs, |verbs| *verbs == ["list"]).await;

    let mut pod = template("j");
    pod["metadata"] = json!({});
    pod["spec"]["restartPolicy"] = json!("Never");
    world
        .create::<Job>(json!({
            "metadata": { "name": "done" }, "spec": { "template": pod, "ttlSecondsAfterFinished": 0 },
        }))
        .await?;
    world.complete_job("done").await?;
    let there = async || {
        let job = world.client.get::<Job>("default", "done").await;
        // Deleted in the foreground: the garbage collector would do the rest.
        job.is_ok_and(|job| job.metadata.deletion_timestamp.is_none())
    };
    eventually("the finished job is deleted", PATIENCE, there, |there| !there).await;
    world.end().await
}
