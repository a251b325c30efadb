//! Life cycle of a control plane: start, stop, restart, backup and restore.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use serde_json::json;
use testkit::{Server, eventually};

const LIMIT: Duration = Duration::from_secs(60);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_survive_a_restart_and_a_restore() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let server = Server::start_in(&data).await?;
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"a": "b"}});
    let created = server.admin.post(CONFIG_MAPS, &object).await?;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    server.stop().await?;

    let server = Server::start_in(&data).await?;
    let kept = server.admin.get(&format!("{CONFIG_MAPS}/kept")).await?;
    assert_eq!(kept.body, created.body);
    server.stop().await?;

    let backup = dir.path().join("backup");
    cluster::backup(&data, &backup).await?;
    let restored = dir.path().join("restored");
    cluster::restore(&backup, &restored).await?;
    let server = Server::start_in(&restored).await?;
    let kept = server.admin.get(&format!("{CONFIG_MAPS}/kept")).await?;
    assert_eq!(kept.body, created.body);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_cluster_backup_restores() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let server = Server::start_in(&data).await?;
    let create = async |name: &str| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        server.admin.post(CONFIG_MAPS, &object).await
    };
    let before = create("before").await?;
    assert_eq!(before.status, StatusCode::CREATED, "{}", before.body);
    // Writes continue meanwhile; those acknowledged before the backup began are in it.
    let (backup, again) = (dir.path().join("backup"), dir.path().join("again"));
    let writes = async {
        for n in 0..20 {
            let written = create(&format!("meanwhile-{n}")).await?;
            assert_eq!(written.status, StatusCode::CREATED, "{}", written.body);
        }
        anyhow::Ok(())
    };
    let (first, second, written) =
        tokio::join!(cluster::backup(&data, &backup), cluster::backup(&data, &again), writes);
    let (first, second) = (first?, second?);
    written?;
    assert!(first > 1 && second > 1);
    let after = create("after").await?;
    assert_eq!(after.status, StatusCode::CREATED, "{}", after.body);
    server.stop().await?;
    assert!(!data.join("backup.sock").exists() && !data.join("backup.passing").exists());

    let restored = dir.path().join("restored");
    cluster::restore(&backup, &restored).await?;
    let server = Server::start_in(&restored).await?;
    let kept = server.admin.get(&format!("{CONFIG_MAPS}/before")).await?;
    assert_eq!(kept.body, before.body);
    let gone = server.admin.get(&format!("{CONFIG_MAPS}/after")).await?;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_directory_in_use_is_rejected() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Server::start_in(dir.path()).await?;
    let Err(error) = Server::start_in(dir.path()).await else { panic!("two servers in one directory") };
    assert!(format!("{error:#}").contains("in use"), "{error:#}");
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_ends_watches_cleanly() -> Result<()> {
    let server = Server::start().await?;
    let mut watches = Vec::new();
    for client in [server.client_as("admin", Some("system:masters"))?, server.admin_http1()?] {
        let mut watch = client.stream("/api/v1/namespaces?watch=true").await?;
        let first = watch.next().await?.expect("an event");
        assert_eq!(first["type"], "ADDED");
        watches.push(watch);
    }
    server.begin_stop();
    for mut watch in watches {
        while tokio::time::timeout(LIMIT, watch.next()).await??.is_some() {}
    }
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthorized_and_foreign_clients_are_rejected() -> Result<()> {
    let server = Server::start().await?;
    let ready = eventually(
        "ready",
        LIMIT,
        async || server.anonymous().expect("a client").get("/readyz").await.map(|reply| reply.status).ok(),
        |status| *status == Some(StatusCode::OK),
    )
    .await;
    assert_eq!(ready, Some(StatusCode::OK));
    assert_eq!(server.anonymous()?.get("/api/v1/secrets").await?.status, StatusCode::FORBIDDEN);
    assert_eq!(
        server.client_as("somebody", None)?.get("/api/v1/secrets").await?.status,
        StatusCode::FORBIDDEN
    );
    let admin = server.client_as("boss", Some("system:masters"))?;
    assert_eq!(admin.get("/api/v1/secrets").await?.status, StatusCode::OK);
    let stranger = Server::start().await?;
    let foreign = server.client_of(&stranger)?;
    assert_eq!(foreign.get("/api/v1/secrets").await?.status, StatusCode::UNAUTHORIZED);
    stranger.stop().await?;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn livez_fails_while_a_background_task_cannot_be_restarted() -> Result<()> {
    let server = Server::start().await?;
    let live = async || server.admin.get("/livez").await.map(|reply| reply.status).unwrap_or_default();
    assert_eq!(live().await, StatusCode::OK);
    server.tasks().supervise("broken", || async { panic!("again") });
    eventually("not live", LIMIT, live, |status| *status == StatusCode::INTERNAL_SERVER_ERROR).await;
    let metrics = server.admin.get("/metrics").await?;
    let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
    for name in ["ferry_task_restarts_total", "ferry_task_panics_total"] {
        assert!(text.contains(&format!("{name}{{task=\"broken\"}}")), "{name}");
    }
    server.stop().await
}

/// A data directory of an earlier version that other users can read is closed at the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_directory_accessible_to_others_is_restricted_at_start() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir()?;
    let paths = [directory.path().to_owned(), directory.path().join("logs")];
    std::fs::create_dir(&paths[1])?;
    for path in &paths {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    let server = Server::start_in(directory.path()).await?;
    for path in &paths {
        let mode = std::fs::metadata(path)?.permissions().mode();
        ensure!(mode & 0o007 == 0, "{} has mode {mode:o}", path.display());
    }
    server.stop().await
}
