//! A small fleet against a real API server.

use std::time::Duration;

use anyhow::Result;
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, DeleteOptions, ListOptions};
use objects::coordination::v1::Lease;
use objects::core::v1::{Node, Pod, ServiceAccount};
use serde_json::json;
use simulate::Fleet;
use testkit::{Server, eventually};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_runs_completes_and_deletes_pods() -> Result<()> {
    let server = Server::start().await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let tasks = TaskGroup::new();
    let fleet = Fleet { nodes: 3, run_time: Duration::from_millis(10), ..Fleet::default() };
    simulate::start(&client, fleet.clone(), &Clock::system(), &tasks).await?;
    assert_eq!(client.list::<Node>("", &ListOptions::default()).await?.items.len(), 3);
    let leases = async || {
        client.list::<Lease>("kube-node-lease", &ListOptions::default()).await.expect("lists").items.len()
    };
    eventually("heartbeats", PATIENCE, leases, |count| *count == 3).await;

    let mut account = ServiceAccount::default();
    account.metadata.name = Some("default".to_owned());
    client.create("default", &account).await?;
    for (name, policy) in [("stays", "Always"), ("ends", "Never")] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"nodeName": "sim-00001", "restartPolicy": policy,
                     "containers": [{"name": "c", "image": "example.com/x"}]},
        }))?;
        client.create("default", &pod).await?;
    }
    let phase = async |name: &str| {
        let pod = client.get::<Pod>("default", name).await.ok()?;
        pod.status.and_then(|status| status.phase)
    };
    eventually("it runs", PATIENCE, async || phase("stays").await, |seen| seen.as_deref() == Some("Running"))
        .await;
    eventually(
        "it ends",
        PATIENCE,
        async || phase("ends").await,
        |seen| seen.as_deref() == Some("Succeeded"),
    )
    .await;
    client.delete::<Pod>("default", "stays", &DeleteOptions::default()).await?;
    eventually("the pod is deleted", PATIENCE, async || phase("stays").await, Option::is_none).await;
    tasks.drain(PATIENCE).await?;
    simulate::remove(&client, &fleet).await?;
    server.stop().await
}
