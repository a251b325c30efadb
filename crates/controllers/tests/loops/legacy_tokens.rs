//! Cleaning of auto-generated tokens that are unused for long.

use anyhow::Result;
use base::clock::Clock;
use client::{ListOptions, Patch};
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use serde_json::json;
use testkit::eventually;

use crate::world::{PATIENCE, World};

const LOOP: &str = "legacy-serviceaccount-token-cleaner-controller";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const YEAR: SignedDuration = SignedDuration::from_hours(366 * 24);

fn day(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

/// Existing tokens, and those marked as invalid.
async fn tokens(world: &World) -> Vec<(String, bool)> {
    let list = world.admin.list::<Secret>("default", &ListOptions::default()).await.expect("lists");
    let marked = |secret: &Secret| {
        secret.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(INVALID_SINCE))
    };
    list.items
        .iter()
        .map(|secret| (secret.metadata.name.clone().unwrap_or_default(), marked(secret)))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_tokens_are_invalidated_then_deleted() -> Result<()> {
    let mut world = World::outside().await?;
    let admin = world.admin.clone();
    let names = ["mounted", "unused", "used"];
    let listed = names.map(|name| json!({"name": name}));
    // The user-created token is not listed.
    let account = json!({"metadata": {"name": "default"}, "secrets": listed});
    admin.create("default", &serde_json::from_value::<ServiceAccount>(account)?).await?;
    for name in names.into_iter().chain(["own"]) {
        let secret = json!({
            "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": "default"}},
            "type": "kubernetes.io/service-account-token",
        });
        admin.create("default", &serde_json::from_value::<Secret>(secret)?).await?;
    }
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "image:1"}],
        "volumes": [{"name": "v", "secret": {"secretName": "mounted"}}],
    }});
    admin.create("default", &serde_json::from_value::<Pod>(pod)?).await?;

    // The server began to record token use only lately: a year without a record proves nothing.
    let now = Timestamp::now() + YEAR;
    world.clock = Clock::held_at(now);
    let tracking = async |since: String| {
        let patch = Patch::Merge(json!({"data": {"since": since}}));
        let name = "kube-apiserver-legacy-service-account-token-tracking";
        let change = async || admin.patch::<ConfigMap>("kube-system", name, None, &patch).await.is_ok();
        eventually("the tracking start is recorded", PATIENCE, change, |done| *done).await;
    };
    let label = async |name: &str, key: &str, value: String| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        admin.patch::<Secret>("default", name, None, &patch).await.map(drop)
    };
    label("used", LAST_USED, day(now - SignedDuration::from_hours(48))).await?;
    tracking(day(now - SignedDuration::from_hours(24))).await;
    world.start_loops(LOOP)?;
    world.kill_loops();
    let all = |marked: &[&str]| {
        let names = ["mounted", "own", "unused", "used"];
        names.map(|name| (name.to_owned(), marked.contains(&name))).to_vec()
    };
    assert_eq!(tokens(&world).await, all(&[]));

    tracking(day(now - YEAR - SignedDuration::from_hours(48))).await;
    world.start_loops(LOOP)?;
    let seen = async || tokens(&world).await;
    eventually("the unused token is marked", PATIENCE, seen, |seen| *seen == all(&["unused"])).await;

    // Another year; the loop was down for all of it.
    world.kill_loops();
    world.clock.advance(YEAR);
    label("used", LAST_USED, day(world.clock.now())).await?;
    world.start_loops(LOOP)?;
    let seen = async || tokens(&world).await.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    eventually("the marked token is deleted", PATIENCE, seen, |seen| *seen == ["mounted", "own", "used"])
        .await;
    assert!(tokens(&world).await.iter().all(|(_, marked)| !marked));
    world.stop().await
}
