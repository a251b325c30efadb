//! Shutdown of a control plane as seen by load balancers and clients: `--shutdown-delay-duration` and
//! `--shutdown-send-retry-after`.

use std::time::Duration;

use anyhow::Result;
use http::{StatusCode, header};
use serde_json::json;
use testkit::{Reply, Server, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMIT: Duration = Duration::from_secs(60);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_delay_fails_readyz_and_serves_everything_else() -> Result<()> {
    let server = Server::start_with(|config| {
        config.shutdown_delay = Duration::from_secs(3);
        config.components = cluster::Components::all();
    })
    .await?;
    let mut watch = server.admin.stream(&format!("{CONFIG_MAPS}?watch=true&resourceVersion=0")).await?;
    let first = watch.next().await?;
    assert!(first.is_some(), "kube-root-ca.crt exists");
    server.begin_stop();
    let ready = async || server.admin.get("/readyz").await.map(|reply| reply.status).ok();
    eventually("/readyz fails", LIMIT, ready, |code| *code == Some(StatusCode::INTERNAL_SERVER_ERROR)).await;
    for path in ["/livez", "/healthz"] {
        assert_eq!(server.admin.get(path).await?.status, StatusCode::OK, "{path}");
    }
    // Existing and new connections, reads and writes, and the watch continue.
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}});
    let created = server.admin_http1()?.post(CONFIG_MAPS, &object).await?;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await? {
        seen.push(event["object"]["metadata"]["name"].clone());
    }
    assert!(seen.contains(&json!("late")), "{seen:?}");
    let refused = async || server.admin_http1().ok()?.get("/livez").await.ok().map(|reply| reply.status);
    eventually("connections are refused", LIMIT, refused, Option::is_none).await;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_rejects_new_requests_with_retry_after() -> Result<()> {
    let server = Server::start_with(|config| {
        config.serving.accept_while_draining = true;
        config.api.chain.retry_after_while_draining = true;
    })
    .await?;
    // A request in flight: its body is not complete yet, so the drain waits for it.
    let mut held = server.admin_http1()?.handshake().await?;
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"held"}}"#;
    let (begin, rest) = body.split_at(20);
    let length = body.len();
    let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n");
    let head = format!("{head}content-length: {length}\r\nexpect: 100-continue\r\n\r\n");
    held.write_all(head.as_bytes()).await?;
    held.flush().await?;
    // Sent when the server begins to read the body.
    let mut proceed = [0; 25];
    held.read_exact(&mut proceed).await?;
    assert_eq!(&proceed, b"HTTP/1.1 100 Continue\r\n\r\n");
    held.write_all(begin.as_bytes()).await?;
    held.flush().await?;
    server.begin_stop();
    let refused = async || server.admin_http1().ok()?.get(CONFIG_MAPS).await.ok();
    let is_refused = |reply: &Option<Reply>| {
        reply.as_ref().is_some_and(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS)
    };
    let refused = eventually("requests are rejected", LIMIT, refused, is_refused).await.expect("a reply");
    assert_eq!(refused.headers[header::RETRY_AFTER], "5");
    assert_eq!(refused.headers[header::CONNECTION], "close");
    assert_eq!(&refused.bytes[..], b"The apiserver is shutting down, please try again later.\n");
    let over_http2 = server.client_as("somebody", None)?.get("/api").await?;
    assert_eq!(over_http2.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(server.admin_http1()?.get("/livez").await?.status, StatusCode::OK);
    assert_eq!(server.admin_http1()?.get("/readyz").await?.status, StatusCode::INTERNAL_SERVER_ERROR);
    held.write_all(rest.as_bytes()).await?;
    held.flush().await?;
    let mut reply = vec![0; 12];
    held.read_exact(&mut reply).await?;
    assert_eq!(String::from_utf8_lossy(&reply), "HTTP/1.1 201");
    drop(held);
    server.stop().await
}
