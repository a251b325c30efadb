//! Certificates that are renewed while the server runs, and nobody notices.

use anyhow::{Context, Result};
use base::clock::Clock;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use testkit::{Server, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const DAY: SignedDuration = SignedDuration::from_hours(24);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due_is_renewed_while_the_server_runs() -> Result<()> {
    // The server lives in the past, until its certificates have less than a third of their life left.
    let clock = Clock::held_at(Timestamp::now().checked_sub(DAY * 250)?);
    let server = Server::start_with(|config| {
        config.clock = clock.clone();
        config.certificate_check = Duration::from_millis(20);
    })
    .await?;
    assert_eq!(server.admin.get("/readyz").await?.status, StatusCode::OK);
    let before = server.admin.server_certificate().await?;
    let kubeconfig = std::fs::read_to_string(&server.kubeconfig)?;
    clock.advance(DAY * 200);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.admin.server_certificate().await?, before, "not yet");

    clock.advance(DAY * 50);
    let shown = async || server.admin.server_certificate().await.ok();
    let after = eventually("another certificate", LIMIT, shown, |shown| {
        shown.as_ref().is_some_and(|shown| *shown != before)
    })
    .await;
    let pem = std::fs::read_to_string(server.data_dir().join("pki/apiserver.pem"))?;
    let saved = base::pki::Identity::from_pem(&pem).map_err(anyhow::Error::msg)?;
    assert_eq!(
        saved.chain.first().context("a certificate")?,
        &after.context("shown")?,
        "the next start has it"
    );
    // The administrator has a new one in the kubeconfig; connections that are open stay open.
    let text = async || std::fs::read_to_string(&server.kubeconfig).unwrap_or_default();
    eventually("another kubeconfig", LIMIT, text, |text| !text.is_empty() && *text != kubeconfig).await;
    assert_eq!(server.admin.get("/readyz").await?.status, StatusCode::OK);
    server.stop().await
}
