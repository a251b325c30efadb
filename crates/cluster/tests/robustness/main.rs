//! Limits, panics and clients that do not read: the server says no in Kubernetes' words, and lives on.

mod troubled;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::Config;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use store::{Embedded, EmbeddedOptions};
use testkit::{Client, Reply, Server, eventually};
use troubled::Troubled;

const LIMIT: Duration = Duration::from_secs(20);
const PATH: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn create(client: &Client, name: &str) -> Result<Reply> {
    client.post(PATH, &config_map(name)).await
}

/// A server on a store that panics and hangs when asked to.
async fn troubled(change: impl FnOnce(&mut Config)) -> Result<(Server, Arc<Troubled>, tempfile::TempDir)> {
    let dir = tempfile::tempdir()?;
    let inner = Embedded::open(EmbeddedOptions::new(dir.path().join("store")))?;
    let store = Arc::new(Troubled::new(Arc::new(inner)));
    let server = Server::start_on(Arc::clone(&store) as _, change).await?;
    Ok((server, store, dir))
}

#[track_caller]
fn assert_status(reply: &Reply, code: u16, reason: &str) {
    assert_eq!(reply.status.as_u16(), code, "{}", reply.body);
    assert_eq!(reply.body["kind"], "Status", "{}", reply.body);
    assert_eq!(reply.body["apiVersion"], "v1");
    assert_eq!(reply.body["code"], code);
    assert_eq!(reply.body["reason"], reason, "{}", reply.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_an_answer() -> Result<()> {
    let (server, _store, _dir) = troubled(|_| {}).await?;
    for client in [server.client_as("admin", Some("system:masters"))?, server.admin_http1()?] {
        let kept_open = create(&client, &format!("fine-{}", rand_name())).await?;
        ensure!(kept_open.status == 201, "{}", kept_open.body);
        let reply = create(&client, "panics").await?;
        assert_status(&reply, 500, "InternalError");
        ensure!(!reply.body.to_string().contains("told to"), "the cause is for the log: {}", reply.body);
        // The same connection and everybody else go on.
        ensure!(create(&client, &format!("fine-{}", rand_name())).await?.status == 201);
    }
    ensure!(server.admin.get("/readyz").await?.status == 200);
    ensure!(server.admin.get(&format!("{PATH}/panics")).await?.status == 404);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_and_costs_nothing_else() -> Result<()> {
    let (server, _store, _dir) = troubled(|_| {}).await?;
    let before = create(&server.admin, "before").await?;
    let refused = create(&server.admin, "full").await?;
    assert_status(&refused, 500, "InternalError");
    let message = refused.body["message"].as_str().unwrap_or_default();
    ensure!(message.contains("space"), "what the matter is: {message}");
    ensure!(server.admin.get(&format!("{PATH}/full")).await?.status == 404, "refused means not there");
    ensure!(server.admin.get(&format!("{PATH}/before")).await?.body == before.body);
    ensure!(create(&server.admin, "after").await?.status == 201);
    server.stop().await
}

fn rand_name() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_are_refused() -> Result<()> {
    let server = Server::start().await?;
    for client in [server.client_as("admin", Some("system:masters"))?, server.admin_http1()?] {
        let mut object = config_map("large");
        object["data"] = json!({"text": "x".repeat(3 << 20)});
        for (method, path) in [
            (Method::POST, PATH.to_owned()),
            (Method::PUT, format!("{PATH}/large")),
            (Method::PATCH, format!("{PATH}/large")),
            (Method::DELETE, format!("{PATH}/large")),
        ] {
            let kind =
                if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
            let reply = client.request(method.clone(), &path, kind, serde_json::to_vec(&object)?).await;
            let reply = reply.with_context(|| format!("{method} {path}"))?;
            assert_status(&reply, 413, "RequestEntityTooLarge");
        }
        ensure!(create(&client, &format!("small-{}", rand_name())).await?.status == 201);
    }
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_ends_in_time() -> Result<()> {
    let (server, store, _dir) =
        troubled(|config| config.api.chain.request_timeout = Duration::from_millis(300)).await?;
    let reply = tokio::time::timeout(LIMIT, create(&server.admin, "hangs")).await??;
    assert_status(&reply, 504, "Timeout");
    // Watches are not requests that end in time.
    let mut watch =
        server.admin.stream(&format!("{PATH}?watch=true&fieldSelector=metadata.name=late")).await?;
    tokio::time::sleep(Duration::from_millis(600)).await;
    ensure!(create(&server.admin, "late").await?.status == 201);
    let event = tokio::time::timeout(LIMIT, watch.next()).await??.context("the watch ended")?;
    ensure!(event["object"]["metadata"]["name"] == "late", "{event}");
    store.let_go();
    server.stop().await
}

/// Lets a user do everything, without being one whom no limit holds.
async fn allow(server: &Server, user: &str) -> Result<()> {
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": user}, "rules": rules});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": user}, "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"}});
    for (resource, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{resource}");
        let reply = server.admin.post(&path, &object).await?;
        ensure!(reply.status == 201, "{}", reply.body);
    }
    let client = server.client_as(user, None)?;
    let allowed = async || client.get(PATH).await.map(|reply| reply.status.as_u16()).unwrap_or(0);
    eventually("allowed", LIMIT, allowed, |code| *code == 200).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_limit_are_told_to_come_back() -> Result<()> {
    let (server, store, _dir) = troubled(|config| {
        config.api.chain.max_mutating_in_flight = 2;
        config.api.chain.priority_and_fairness = false;
    })
    .await?;
    allow(&server, "busy").await?;
    let mut held = Vec::new();
    for n in 0..2 {
        let client = server.client_as("busy", None)?;
        held.push(tokio::spawn(async move { create(&client, &format!("hangs{n}")).await }));
    }
    eventually("two writes hang", LIMIT, async || store.waiting(), |count| *count == 2).await;
    let busy = server.client_as("busy", None)?;
    let refused = create(&busy, "third").await?;
    ensure!(refused.status == 429, "{}", refused.status);
    ensure!(refused.bytes == "Too many requests, please try again later.\n", "{:?}", refused.bytes);
    ensure!(refused.headers["retry-after"] == "1", "{:?}", refused.headers);
    ensure!(busy.get(PATH).await?.status == StatusCode::OK, "reads have room of their own");
    ensure!(create(&server.admin, "urgent").await?.status == 201, "administrators always get in");
    store.let_go();
    for request in held {
        ensure!(request.await??.status == 201, "what waited is done");
    }
    ensure!(create(&busy, "third").await?.status == 201, "there is room again");
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_does_not_read_is_cut_off() -> Result<()> {
    const WRITES: usize = 300;
    let server = Server::start_with(|config| config.serving.write_timeout = Duration::from_secs(1)).await?;
    let path = format!("{PATH}?watch=true&fieldSelector=metadata.name%3Dlarge");
    let (deaf, reading) = (server.admin_http1()?, server.admin_http1()?);
    let mut silent = deaf.stream(&path).await?;
    let mut reader = reading.stream(&path).await?;
    let attentive = tokio::spawn(async move {
        let mut count = 0;
        while count < WRITES && reader.next().await?.is_some() {
            count += 1;
        }
        Ok::<_, anyhow::Error>(count)
    });
    // Far more than sockets and the window of recent changes hold together.
    let mut object = config_map("large");
    for n in 0..WRITES {
        object["data"] = json!({"n": n.to_string(), "text": "x".repeat(150 << 10)});
        let reply = match n {
            0 => server.admin.post(PATH, &object).await?,
            _ => server.admin.put(&format!("{PATH}/large"), &object).await?,
        };
        ensure!(reply.status.is_success(), "{}", reply.body);
    }
    let seen = tokio::time::timeout(LIMIT, attentive).await.context("the reader waits")???;
    ensure!(seen == WRITES, "whoever reads misses nothing: {seen}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut count = 0;
    let ended = async {
        // An error or an end: either way it is over.
        while let Ok(Some(_)) = silent.next().await {
            count += 1;
        }
    };
    tokio::time::timeout(LIMIT, ended).await.context("the silent watcher was not cut off")?;
    ensure!(count < WRITES, "nobody kept {count} events for somebody who does not read");
    ensure!(server.admin.get("/readyz").await?.status == 200);
    server.stop().await
}
