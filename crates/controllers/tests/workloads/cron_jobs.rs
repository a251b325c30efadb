//! The cron job loop.

use anyhow::Result;
use base::clock::Clock;
use client::ListOptions;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use objects::batch::v1::{CronJob, Job};
use serde_json::{Value, json};
use testkit::eventually;

use crate::world::{PATIENCE, World, template};

/// A cron job that is due each second and runs one job at a time.
fn cron(name: &str) -> Value {
    let mut pod = template(name);
    pod["spec"]["restartPolicy"] = json!("Never");
    json!({
        "metadata": { "name": name },
        "spec": {
            "schedule": "@every 1s",
            "concurrencyPolicy": "Forbid",
            "jobTemplate": { "metadata": { "labels": { "made": "by-cron" } }, "spec": { "template": pod } },
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_jobs_start_once_and_are_recorded() -> Result<()> {
    let mut world = World::start(&["cronjob-controller"]).await?;
    world.create::<CronJob>(cron("cron")).await?;
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
    world.stop_loops().await?;
    world.start_loops()?;
    // The restarted loop is at work when it starts the job of another cron job.
    world.create::<CronJob>(cron("other")).await?;
    eventually(
        "a job of the other",
        PATIENCE,
        async || jobs_of(&world, "other").await,
        |jobs| jobs.len() == 1,
    )
    .await;
    assert_eq!(jobs_of(&world, "cron").await.len(), 1, "the first still runs");
    world.end().await
}

/// The jobs of a cron job.
async fn jobs_of(world: &World, cron: &str) -> Vec<String> {
    let list = world.client.list::<Job>("default", &ListOptions::default()).await.expect("jobs");
    let names = list.items.into_iter().filter_map(|job| job.metadata.name);
    names.filter(|name| name.rsplit_once('-').is_some_and(|(of, _)| of == cron)).collect()
}

/// Name of the job for this time.
fn named(cron: &str, at: Timestamp) -> String {
    format!("{cron}-{}", at.as_second() / 60)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cron_job_time_zone_deadline_policy_and_limits_apply() -> Result<()> {
    let mut world = World::start(&["cronjob-controller"]).await?;
    world.stop_loops().await?;
    // Noon UTC, some days from now: nine in the evening in Tokyo.
    let day = Timestamp::now().to_zoned(TimeZone::UTC).date().saturating_add(jiff::Span::new().days(3));
    let noon = day.at(12, 0, 30, 0).to_zoned(TimeZone::UTC)?.timestamp();
    world.clock = Clock::held_at(noon);
    let cron = |name: &str, schedule: &str, more: serde_json::Value| {
        let mut pod = template("cron");
        pod["spec"]["restartPolicy"] = json!("Never");
        let mut spec = json!({ "schedule": schedule, "jobTemplate": { "spec": { "template": pod } } });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        json!({ "metadata": { "name": name }, "spec": spec })
    };
    for object in [
        cron("zoned", "30 9 * * *", json!({ "timeZone": "Asia/Tokyo" })),
        // The time has passed, and so has the deadline.
        cron("late", "0 11 * * *", json!({ "timeZone": "Etc/UTC", "startingDeadlineSeconds": 600 })),
        cron("suspended", "0 * * * *", json!({ "timeZone": "Etc/UTC", "suspend": true })),
        cron("replace", "0 * * * *", json!({ "timeZone": "Etc/UTC", "concurrencyPolicy": "Replace" })),
        cron("history", "0 * * * *", json!({ "timeZone": "Etc/UTC", "successfulJobsHistoryLimit": 1 })),
    ] {
        world.create::<CronJob>(object).await?;
    }
    world.start_loops()?;
    let at = |hours: i64| noon - SignedDuration::from_secs(30) + SignedDuration::from_hours(hours);
    let half_past_nine = at(-12) + SignedDuration::from_mins(30);
    for (name, want) in [
        ("zoned", named("zoned", half_past_nine)),
        ("replace", named("replace", at(0))),
        ("history", named("history", at(0))),
    ] {
        let seen = async || jobs_of(&world, name).await;
        eventually(name, PATIENCE, seen, |jobs| *jobs == [want.clone()]).await;
    }

    // Two hours pass, one at a time, without a reconciliation in between.
    for hour in [1, 2] {
        world.stop_loops().await?;
        world.complete_job(&named("history", at(hour - 1))).await?;
        world.clock.advance(SignedDuration::from_hours(1));
        world.start_loops()?;
        for name in ["replace", "history"] {
            let want = named(name, at(hour));
            let seen = async || jobs_of(&world, name).await;
            eventually(name, PATIENCE, seen, |jobs| jobs.contains(&want)).await;
        }
    }
    let seen = async || jobs_of(&world, "replace").await;
    eventually("the last job replaced earlier ones", PATIENCE, seen, |jobs| {
        *jobs == [named("replace", at(2))]
    })
    .await;
    let seen = async || jobs_of(&world, "history").await;
    let want = [named("history", at(1)), named("history", at(2))];
    eventually("one finished job is retained", PATIENCE, seen, |jobs| *jobs == want).await;
    for name in ["late", "suspended"] {
        assert_eq!(jobs_of(&world, name).await, Vec::<String>::new(), "{name}");
    }
    world.end().await
}
