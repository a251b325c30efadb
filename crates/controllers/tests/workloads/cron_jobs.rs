//! The cron job loop.

use anyhow::Result;
use client::ListOptions;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use serde_json::json;
use testkit::eventually;

use crate::world::{PATIENCE, World, template};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_jobs_start_once_and_are_remembered() -> Result<()> {
    let mut world = World::start(&["cronjob-controller"]).await?;
    let mut pod = template("cron");
    pod["spec"]["restartPolicy"] = json!("Never");
    world.create::<CronJob>(json!({
        "metadata": { "name": "cron" },
        "spec": {
            "schedule": "@every 1s",
            "concurrencyPolicy": "Forbid",
            "jobTemplate": { "metadata": { "labels": { "made": "by-cron" } }, "spec": { "template": pod } },
        },
    })).await?;
    let jobs = async || {
        let list = world.client.list::<Job>("default", &ListOptions::default()).await.expect("jobs");
        list.items.into_iter().map(|job| job.metadata).collect::<Vec<_>>()
    };
    eventually("a job", PATIENCE, jobs, |jobs| jobs.len() == 1).await;
    let job = jobs().await.remove(0);
    assert_eq!(job.labels.as_ref().map(|labels| labels["made"].as_str()), Some("by-cron"));
    let active = async || {
        let status = world.get::<CronJob>("cron").await.status.unwrap_or_default();
        status.active.unwrap_or_default().into_iter().filter_map(|job| job.uid).collect::<Vec<_>>()
    };
    eventually("it is listed", PATIENCE, active, |active| active.len() == 1).await;
    assert_eq!(active().await.first(), job.uid.as_ref());
    world.restart_loops().await?;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let list = world.client.list::<Job>("default", &ListOptions::default()).await?;
    assert_eq!(list.items.len(), 1, "the first still runs");
    world.end().await
}
