//! Audit events sent to a webhook of the test: a working one, a flaky one, a slow one, none.

use anyhow::{Context, Result};
use cluster::audit::{AuditConfig, Mode, WebhookConfig};
use http::StatusCode;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testkit::{Responder, Server, eventually};
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(20);
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Records only creates of ConfigMaps, at ResponseComplete.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: '', resources: [configmaps]}]
  verbs: [create]
";

fn hook(kubeconfig: PathBuf) -> WebhookConfig {
    WebhookConfig {
        kubeconfig,
        mode: Mode::Batch,
        buffer: 1000,
        max_batch: 400,
        max_wait: FOR_EVER,
        throttle: None,
        initial_back_off: Duration::from_millis(5),
        max_event_bytes: None,
        max_batch_bytes: 1 << 20,
    }
}

async fn start(directory: &Path, policy: &str, hook: WebhookConfig) -> Result<Server> {
    let path = directory.join("policy.yaml");
    std::fs::write(&path, policy)?;
    let audit = AuditConfig { policy_file: Some(path), webhook: Some(hook), ..AuditConfig::default() };
    Server::start_with(|config| config.api.audit = audit).await
}

async fn create(server: &Server, names: std::ops::Range<usize>) -> Result<()> {
    for number in names {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{number}")}});
        let reply = server.admin.post("/api/v1/namespaces/default/configmaps", &map).await?;
        assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    }
    Ok(())
}

/// Number of events per batch, and the names of their objects.
fn delivered(responder: &Responder) -> (Vec<usize>, Vec<String>) {
    let lists: Vec<Vec<Value>> =
        responder.seen().iter().filter_map(|(_, list)| list["items"].as_array().cloned()).collect();
    let name = |event: &Value| event["objectRef"]["name"].as_str().unwrap_or("").to_owned();
    (lists.iter().map(Vec::len).collect(), lists.iter().flatten().map(name).collect())
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("map-{number}")).collect()
}

/// Number of events that a backend dropped.
async fn lost(server: &Server, plugin: &str) -> u64 {
    let Ok(reply) = server.admin.get("/metrics").await else { return 0 };
    let text = String::from_utf8_lossy(&reply.bytes).into_owned();
    let wanted = format!("apiserver_audit_error_total{{plugin=\"{plugin}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&wanted)?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn events_are_batched_and_flushed_at_shutdown() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let responder = Responder::start(|_, _| (200, json!({}))).await?;
    let kubeconfig = responder.kubeconfig(directory.path(), "/events")?;
    let server = start(directory.path(), POLICY, WebhookConfig { max_batch: 5, ..hook(kubeconfig) }).await?;
    create(&server, 0..12).await?;
    let seen = async || delivered(&responder).0;
    eventually("two full batches", LIMIT, seen, |batches| *batches == [5, 5]).await;
    server.stop().await?;
    let (batches, mut about) = delivered(&responder);
    assert_eq!(batches, [5, 5, 2], "remaining events are sent at shutdown");
    // Batches may arrive out of order.
    about.sort_by_key(|name| name[4..].parse::<usize>().unwrap_or(0));
    assert_eq!(about, names(0..12));
    let (path, list) = responder.seen().into_iter().next().context("a request")?;
    assert_eq!(path, "/events");
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
    let event = &list["items"][0];
    assert_eq!((&event["level"], &event["stage"]), (&json!("Metadata"), &json!("ResponseComplete")));
    assert!(event.get("kind").is_none(), "the list has a type: {event}");
    Ok(())
}

#[tokio::test]
async fn failing_webhook_is_retried_until_it_accepts() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let responder = Responder::start(move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
        0 => (500, json!({})),
        1 => (404, json!({})),
        _ => (200, json!({})),
    })
    .await?;
    let kubeconfig = responder.kubeconfig(directory.path(), "")?;
    let max_wait = Duration::from_millis(1);
    let server = start(directory.path(), POLICY, WebhookConfig { max_wait, ..hook(kubeconfig) }).await?;
    create(&server, 0..1).await?;
    eventually("the third attempt", LIMIT, async || attempts.load(Ordering::SeqCst), |seen| *seen == 3).await;
    assert_eq!(lost(&server, "webhook").await, 0);
    server.stop().await?;
    assert_eq!(delivered(&responder).1, ["map-0"; 3]);
    Ok(())
}

#[tokio::test]
async fn unreachable_webhook_drops_and_counts_events_without_blocking() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let responder = Responder::start(|_, _| (200, json!({}))).await?;
    let kubeconfig = responder.kubeconfig(directory.path(), "")?;
    drop(responder);
    let max_wait = Duration::from_millis(1);
    let server = start(directory.path(), POLICY, WebhookConfig { max_wait, ..hook(kubeconfig) }).await?;
    create(&server, 0..20).await?;
    eventually("given up", LIMIT, async || lost(&server, "webhook").await, |lost| *lost == 20).await;
    server.stop().await
}

#[tokio::test]
async fn hanging_webhook_drops_events_without_blocking_requests() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let kubeconfig = directory.path().join("silent.kubeconfig");
    let text = json!({
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", silent.local_addr()?)}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    });
    std::fs::write(&kubeconfig, text.to_string())?;
    let (max_wait, buffer) = (Duration::from_millis(1), 10);
    let hook = WebhookConfig { max_wait, buffer, max_batch: 1, ..hook(kubeconfig) };
    let server = start(directory.path(), POLICY, hook).await?;
    create(&server, 0..60).await?;
    let buffered = lost(&server, "buffered").await;
    assert!(
        (30..60).contains(&buffered),
        "some wait, some are on their way, the others are lost: {buffered}"
    );
    // Shutdown completes in time, although the remaining events cannot be sent.
    server.stop().await?;
    drop(silent);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_mode_delays_response_until_event_is_sent() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let well = Arc::new(AtomicUsize::new(1));
    let mood = Arc::clone(&well);
    let responder =
        Responder::start(move |_, _| (if mood.load(Ordering::SeqCst) == 1 { 200 } else { 500 }, json!({})))
            .await?;
    let kubeconfig = responder.kubeconfig(directory.path(), "")?;
    let strict = WebhookConfig { mode: Mode::BlockingStrict, ..hook(kubeconfig) };
    let policy = POLICY.replace("omitStages: [RequestReceived]\n", "");
    let server = start(directory.path(), &policy, strict).await?;
    create(&server, 0..1).await?;
    assert_eq!(delivered(&responder).0, [1, 1], "both stages are recorded before the response");
    well.store(0, Ordering::SeqCst);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unrecorded"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let reply = server.admin.post(maps, &map).await?;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR, "{}", reply.body);
    let reply = server.admin.get(&format!("{maps}/unrecorded")).await?;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert_eq!(lost(&server, "webhook").await, 1);
    server.stop().await
}
