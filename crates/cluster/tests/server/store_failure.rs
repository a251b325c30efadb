//! A failed or missing store is reported to clients and operators.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use http::StatusCode;
use serde_json::json;
use store::embedded::{Disk, Io};
use store::{Embedded, EmbeddedOptions};
use testkit::{Server, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A disk whose syncs fail on demand.
#[derive(Default)]
struct Failing(AtomicBool);

impl Io for Failing {
    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        Disk.write(file, data, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        if self.0.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(5));
        }
        Disk.sync(file)
    }

    fn allocate(&self, file: &File, length: u64) -> io::Result<()> {
        Disk.allocate(file, length)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_failure_fails_probes_and_stops_process_with_error() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let disk = Arc::new(Failing::default());
    let mut options = EmbeddedOptions::new(directory.path());
    options.io = disk.clone();
    let store = Arc::new(Embedded::open(options)?);
    let server =
        Server::start_on(store, |config| config.store_failure_grace = Duration::from_secs(5)).await?;
    for probe in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(server.admin.get(probe).await?.status, StatusCode::OK, "{probe}");
    }
    disk.0.store(true, Ordering::SeqCst);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    assert!(server.admin.post(MAPS, &map).await?.status.is_server_error());
    for probe in ["/livez", "/readyz", "/healthz"] {
        let reply = server.admin.get(probe).await?;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR, "{probe}");
        assert!(String::from_utf8_lossy(&reply.bytes).contains("[-]store failed"), "{probe}");
    }
    let why = server.admin.get("/readyz/store").await?;
    let why = String::from_utf8_lossy(&why.bytes).into_owned();
    assert!(why.contains(&directory.path().display().to_string()) && why.contains("restart ferry"), "{why}");
    let metrics = server.admin.get("/metrics").await?;
    assert!(String::from_utf8_lossy(&metrics.bytes).contains("ferry_store_failed 1"));

    let down = async || server.admin.get("/livez").await.is_err();
    eventually("the process ends", LIMIT, down, |down| *down).await;
    let error = server.stop().await.expect_err("an error").to_string();
    assert!(error.contains("store failure"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_directory_with_certificates_but_no_store_is_rejected() -> Result<()> {
    let directory = tempfile::tempdir()?;
    Server::start_in(directory.path()).await?.stop().await?;
    let store = directory.path().join("store");
    std::fs::remove_dir_all(&store)?;
    for prepare in [false, true] {
        if prepare {
            std::fs::create_dir(&store)?;
        }
        let error = match Server::start_in(directory.path()).await {
            Ok(_) => anyhow::bail!("it started as a new cluster"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("contains no store") && error.contains("backup"), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_tasks_are_a_liveness_check() -> Result<()> {
    let server = Server::start().await?;
    assert_eq!(server.admin.get("/livez/background-tasks").await?.status, StatusCode::OK);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_at_quota_rejects_writes_until_objects_are_deleted() -> Result<()> {
    let server = Server::start_with(|config| config.store_quota_bytes = 4 << 20).await?;
    let map = |at: usize| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{at}")},
            "data": {"text": "x".repeat(256 << 10)},
        })
    };
    let mut refused = None;
    for at in 0..64 {
        let reply = server.admin.post(MAPS, &map(at)).await?;
        if reply.status != StatusCode::CREATED {
            refused = Some((at, reply));
            break;
        }
    }
    let (at, reply) = refused.context("the quota was never reached")?;
    assert!(at > 4 && reply.status.is_server_error(), "{at}: {}", reply.body);
    assert!(reply.body["message"].as_str().unwrap_or_default().contains("space exceeded"), "{}", reply.body);
    assert_eq!(server.admin.get(&format!("{MAPS}/m0")).await?.status, StatusCode::OK, "reads continue");
    for gone in 0..at {
        assert_eq!(server.admin.delete(&format!("{MAPS}/m{gone}")).await?.status, StatusCode::OK);
    }
    let written =
        async || server.admin.post(MAPS, &map(100)).await.map(|reply| reply.status).unwrap_or_default();
    eventually("space for another object", LIMIT, written, |status| *status == StatusCode::CREATED).await;
    server.stop().await
}
