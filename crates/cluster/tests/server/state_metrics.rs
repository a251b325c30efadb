//! State metrics of a control plane in this process, and of `run_state_metrics` against it.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base::tasks::TaskGroup;
use cluster::{StateMetricsConfig, StateMetricsPort};
use serde_json::json;
use testkit::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(60);

/// Head and body of a response.
async fn get(address: SocketAddr, path: &str, headers: &str) -> Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: x\r\n{headers}\r\n").as_bytes()).await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n").context("no head")?;
    let body = reply.split_off(end + 4);
    Ok((String::from_utf8(reply)?.to_ascii_lowercase(), body))
}

async fn page(address: SocketAddr) -> String {
    let page = get(address, "/metrics", "").await;
    page.map_or_else(|error| error.to_string(), |(_, body)| String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_metrics_come_from_the_api_server() -> Result<()> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = free.local_addr()?;
    drop(free);
    let port = |address| StateMetricsPort { address, metrics: StateMetricsConfig::default() };
    let server = Server::start_with(|config| {
        config.components.addons = true;
        config.components.state_metrics = Some(port(address));
    })
    .await?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": "default"},
        "stringData": {"password": "hunter2"}});
    server.admin.post("/api/v1/namespaces/default/secrets", &secret).await?;
    let job = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {
        "schedule": "0 3 * * *", "timeZone": "Etc/UTC", "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}}}}}});
    server.admin.post("/apis/batch/v1/namespaces/default/cronjobs", &job).await?;

    let wanted = "kube_secret_type{namespace=\"default\",secret=\"token\",type=\"Opaque\"} 1\n";
    let text = testkit::eventually(
        "the component lists secrets",
        LIMIT,
        || page(address),
        |text| text.contains(wanted) && text.contains("kube_cronjob_next_schedule_time{"),
    )
    .await;
    ensure!(
        !text.contains("hunter2") && !text.contains("aHVudGVyMg"),
        "the page has the contents of a secret"
    );
    ensure!(
        text.contains("kube_namespace_status_phase{namespace=\"kube-system\",phase=\"Active\"} 1\n"),
        "{text}"
    );
    let successes = text.matches("result=\"success\"} ").count();
    ensure!(successes == 56, "{text}");
    for path in ["/healthz", "/livez", "/readyz"] {
        let (head, body) = get(address, path, "").await?;
        ensure!(head.starts_with("http/1.0 200") && body == b"OK", "{path}: {head}");
    }
    ensure!(get(address, "/secrets", "").await?.0.starts_with("http/1.0 404"));
    let (head, body) = get(address, "/metrics", "Accept-Encoding: deflate, gzip;q=0.8\r\n").await?;
    ensure!(head.contains("content-encoding: gzip"), "{head}");
    let mut plain = String::new();
    flate2::read::GzDecoder::new(&*body).read_to_string(&mut plain)?;
    ensure!(plain.contains(wanted));

    let tasks = TaskGroup::new();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let (kubeconfig, own) = (server.kubeconfig.clone(), tasks.clone());
    let alone = tokio::spawn(async move {
        let tell = |address| {
            // The receiver is gone if the test has failed.
            let _ = ready.send(address);
        };
        let port = port(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        cluster::run_state_metrics(port, kubeconfig, &own, Box::new(tell)).await
    });
    let other = is_ready.await?;
    let theirs = testkit::eventually(
        "the component alone lists secrets",
        LIMIT,
        || page(other),
        |text| text.contains(wanted),
    )
    .await;
    ensure!(!theirs.contains("result=\"error\"} 1"), "{theirs}");
    tasks.stop();
    alone.await??;
    server.stop().await
}
