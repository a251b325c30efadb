//! Requests for certificates do not stay for ever.

use anyhow::Result;
use base::clock::Clock;
use client::{ListOptions, Patch};
use jiff::{SignedDuration, Timestamp};
use objects::certificates::v1::CertificateSigningRequest;
use serde_json::json;
use testkit::eventually;

use crate::scenarios::signing_request;
use crate::world::{PATIENCE, World};

const LOOP: &str = "certificatesigningrequest-cleaner-controller";

async fn request(world: &World, user: &str) -> Result<()> {
    let request = signing_request(user, "team", "kubernetes.io/kube-apiserver-client")?;
    world.admin.create("", &serde_json::from_value::<CertificateSigningRequest>(request)?).await?;
    Ok(())
}

async fn settle(world: &World, name: &str, kind: &str, at: Timestamp) -> Result<()> {
    let at = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({"type": kind, "status": "True", "reason": "Test", "lastUpdateTime": at, "lastTransitionTime": at});
    let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    world.admin.patch::<CertificateSigningRequest>("", name, Some("approval"), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_when_nobody_needs_them_any_more() -> Result<()> {
    let mut world = World::outside().await?;
    let now = Timestamp::now();
    world.clock = Clock::held_at(now);
    for user in ["pending", "approved", "denied", "long-denied"] {
        request(&world, user).await?;
    }
    settle(&world, "approved", "Approved", now).await?;
    settle(&world, "denied", "Denied", now).await?;
    settle(&world, "long-denied", "Denied", now - SignedDuration::from_hours(2)).await?;
    let names = async |world: &World| {
        let list = world.admin.list::<CertificateSigningRequest>("", &ListOptions::default()).await;
        let items = list.expect("lists").items;
        items.into_iter().filter_map(|request| request.metadata.name).collect::<Vec<_>>()
    };
    world.start_loops(LOOP)?;
    let seen = async || names(&world).await;
    eventually("what was settled long ago goes", PATIENCE, seen, |seen| {
        *seen == ["approved", "denied", "pending"]
    })
    .await;

    // The loop is down while the hour passes; a request of the same name as one that is gone is another one.
    world.kill_loops();
    world.clock.advance(SignedDuration::from_mins(61));
    request(&world, "long-denied").await?;
    world.start_loops(LOOP)?;
    let seen = async || names(&world).await;
    eventually("what was denied goes after an hour", PATIENCE, seen, |seen| {
        *seen == ["approved", "long-denied", "pending"]
    })
    .await;

    world.kill_loops();
    world.clock.advance(SignedDuration::from_hours(24));
    world.start_loops(LOOP)?;
    let seen = async || names(&world).await;
    eventually("what nobody settled goes after a day", PATIENCE, seen, |seen| seen.is_empty()).await;
    world.stop().await
}
