//! Limits, panics and clients that do not read: the server rejects requests with Kubernetes' messages, and keeps
//! running.

mod troubled;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::Config;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use store::{Embedded, EmbeddedOptions};
use testkit::{Client, Reply, Server, eventually};
use troubled::FaultyStore;

const LIMIT: Duration = Duration::from_secs(20);
const PATH: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn create(client: &Client, name: &str) -> Result<Reply> {
    client.post(PATH, &config_map(name)).await
}

/// A server on a store that panics and hangs on request.
async fn troubled(change: impl FnOnce(&mut Config)) -> Result<(Server, Arc<FaultyStore>, tempfile::TempDir)> {
    let dir = tempfile::tempdir()?;
    let inner = Embedded::open(EmbeddedOptions::new(dir.path().join("store")))?;
    let store = Arc::new(FaultyStore::new(Arc::new(inner)));
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
async fn panic_in_store_returns_500() -> Result<()> {
    let (server, _store, _dir) = troubled(|_| {}).await?;
    for client in [server.client_as("admin", Some("system:masters"))?, server.admin_http1()?] {
        let kept_open = create(&client, &format!("fine-{}", rand_name())).await?;
        ensure!(kept_open.status == 201, "{}", kept_open.body);
        let reply = create(&client, "panics").await?;
        assert_status(&reply, 500, "InternalError");
        ensure!(
            !reply.body.to_string().contains("injected panic"),
            "the cause is for the log: {}",
            reply.body
        );
        // The same connection and all others still work.
        ensure!(create(&client, &format!("fine-{}", rand_name())).await?.status == 201);
    }
    ensure!(server.admin.get("/readyz").await?.status == 200);
    ensure!(server.admin.get(&format!("{PATH}/panics")).await?.status == 404);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_fails_only_the_write() -> Result<()> {
    let (server, _store, _dir) = troubled(|_| {}).await?;
    let before = create(&server.admin, "before").await?;
    let refused = create(&server.admin, "full").await?;
    assert_status(&refused, 500, "InternalError");
    let message = refused.body["message"].as_str().unwrap_or_default();
    ensure!(message.contains("space"), "the cause: {message}");
    ensure!(
        server.admin.get(&format!("{PATH}/full")).await?.status == 404,
        "a rejected object does not exist"
    );
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
async fn oversized_bodies_are_rejected() -> Result<()> {
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
async fn hanging_request_times_out() -> Result<()> {
    let (server, store, _dir) =
        troubled(|config| config.api.chain.request_timeout = Duration::from_millis(300)).await?;
    // Watches are exempt from the request timeout: this one is older than the request that times out.
    let mut watch =
        server.admin.stream(&format!("{PATH}?watch=true&fieldSelector=metadata.name=late")).await?;
    let reply = tokio::time::timeout(LIMIT, create(&server.admin, "hangs")).await??;
    assert_status(&reply, 504, "Timeout");
    ensure!(create(&server.admin, "late").await?.status == 201);
    let event = tokio::time::timeout(LIMIT, watch.next()).await??.context("the watch ended")?;
    ensure!(event["object"]["metadata"]["name"] == "late", "{event}");
    store.release();
    server.stop().await
}

/// Grants a user all permissions, without exempting it from limits.
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
async fn requests_beyond_limit_return_429_with_retry_after() -> Result<()> {
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
    ensure!(busy.get(PATH).await?.status == StatusCode::OK, "reads have a separate limit");
    ensure!(create(&server.admin, "urgent").await?.status == 201, "administrators always get in");
    store.release();
    for request in held {
        ensure!(request.await??.status == 201, "held requests complete");
    }
    ensure!(create(&busy, "third").await?.status == 201, "capacity is available again");
    server.stop().await
}

/// Number of established connections to a port of this machine, on the server's side.
fn established(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let (port, established) = (format!(":{port:04X}"), "01");
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 3 && row[1].ends_with(&port) && row[3] == established).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_watch_is_closed() -> Result<()> {
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
    // Far more than the socket buffers and the watch cache window hold together.
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
    ensure!(seen == WRITES, "a reading client misses no event: {seen}");
    drop(reading);
    // Only the administrator's connection is left.
    let established = async || established(server.address.port());
    eventually("the silent watch is cut off", LIMIT, established, |count| *count <= 1).await;
    let mut count = 0;
    let ended = async {
        // An error or the end of the stream: either way it has ended.
        while let Ok(Some(_)) = silent.next().await {
            count += 1;
        }
    };
    tokio::time::timeout(LIMIT, ended).await.context("the silent watcher was not cut off")?;
    ensure!(count < WRITES, "the server buffered {count} events for a client that does not read");
    ensure!(server.admin.get("/readyz").await?.status == 200);
    server.stop().await
}
