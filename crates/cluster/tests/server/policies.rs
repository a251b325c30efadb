//! Network policies from the API to the kernel, with only their agent's permissions. The server and the agent run in
//! a network namespace of the test; packet filtering is tested with the rules.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use base::tasks::TaskGroup;
use client::{Client, ListOptions, Object, Patch, delete_options};
use objects::core::v1::{Pod, Secret, ServiceAccount};
use objects::meta::v1::DeleteOptions;
use objects::networking::v1::NetworkPolicy;
use serde_json::{Value, json};
use sys::instance::Instance;
use sys::process::{Namespace, unshare};
use testkit::{Server, eventually};

const PATIENCE: Duration = Duration::from_secs(60);

/// The nftables table as printed by nft, if it exists.
fn table() -> String {
    let output = Command::new("nft").args(["list", "table", "ip", "ferry-policy"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Waits until the table contains all of these texts, and none of the others.
async fn shows(what: &str, there: &[&str], gone: &[&str]) {
    eventually(
        what,
        PATIENCE,
        async || table(),
        |table| {
            there.iter().all(|text| table.contains(text)) && !gone.iter().any(|text| table.contains(text))
        },
    )
    .await;
}

async fn create<K: Object>(client: &Client, ns: &str, object: Value) -> Result<K> {
    client.create(ns, &objects::from_value(&object)?).await.context("an object could not be created")
}

/// Client with the agent's token.
async fn driver(server: &Server, administrator: &Client, directory: &Path) -> Result<Client> {
    let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{}/token", policy::access::ACCOUNT);
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let review: Value = administrator.post(&path, &request).await?;
    let token = review["status"]["token"].as_str().context("a token")?;
    let root = std::fs::read_to_string(&server.kubeconfig)?;
    let authority = root
        .lines()
        .find_map(|line| line.trim().strip_prefix("certificate-authority-data:"))
        .context("an authority")?;
    let file = directory.join("kubeconfig");
    std::fs::write(
        &file,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster:\n    server: https://{}\n    \
             certificate-authority-data: {}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
             users:\n- name: u\n  user: {{token: {token}}}\n",
            server.address,
            authority.trim()
        ),
    )?;
    Ok(Client::connect(&file, "network-policy")?)
}

async fn pod(client: &Client, name: &str, node: &str, address: &str) -> Result<()> {
    let object = json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "i" }] },
    });
    create::<Pod>(client, "default", object).await?;
    let status = json!({ "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] } });
    client.patch::<Pod>("default", name, Some("status"), &Patch::Strategic(status)).await?;
    Ok(())
}

/// Policies apply to a pod as soon as its node reports its address, before the API has it, and also if the node
/// reported the pod first.
async fn policies_apply_before_pod_starts(
    administrator: &Client,
    early: &Arc<policy::PodStartGate>,
) -> Result<()> {
    let address: IpAddr = "10.1.0.7".parse()?;
    let reporting = {
        let early = Arc::clone(early);
        tokio::spawn(async move { early.register("default", "early", &[address]).await })
    };
    let object = json!({
        "metadata": { "name": "early", "labels": { "app": "db" } },
        "spec": { "nodeName": "here", "containers": [{ "name": "main", "image": "i" }] },
    });
    create::<Pod>(administrator, "default", object).await?;
    tokio::time::timeout(PATIENCE, reporting).await.context("the address was not reported in time")??;
    assert!(table().contains("10.1.0.7 : goto ingress-group"), "{}", table());
    // The API's later report of the same address changes nothing; a different one applies.
    let status = |address: &str| {
        Patch::Merge(json!({ "status": { "podIP": address, "podIPs": [{ "ip": address }] } }))
    };
    for address in ["10.1.0.7", "10.1.0.8"] {
        administrator.patch::<Pod>("default", "early", Some("status"), &status(address)).await?;
        shows("its address", &[&format!("{address} : goto ingress-group")], &[]).await;
    }
    shows("only that one", &[], &["10.1.0.7"]).await;
    let at_once = DeleteOptions { grace_period_seconds: Some(0), ..delete_options(None, None) };
    administrator.delete::<Pod>("default", "early", &at_once).await?;
    shows("the pod is removed", &[], &["10.1.0.8"]).await;
    Ok(())
}

async fn session() -> Result<()> {
    let server = Server::start().await?;
    let administrator = Client::connect(&server.kubeconfig, "test")?;
    create::<ServiceAccount>(&administrator, "default", json!({ "metadata": { "name": "default" } })).await?;
    policy::access::install(&administrator).await?;
    policy::access::install(&administrator).await.context("again, as after a restart")?;
    let directory = tempfile::tempdir()?;
    let client = driver(&server, &administrator, directory.path()).await?;
    assert!(client.list::<Secret>("", &ListOptions::default()).await.expect_err("secrets").is_forbidden());
    let tasks = TaskGroup::new();
    let (received, ready) = tokio::sync::oneshot::channel();
    let early = Arc::new(policy::PodStartGate::default());
    let running = {
        let (early, tasks) = (Arc::clone(&early), tasks.clone());
        let ready = Box::new(move || {
            let _ = received.send(());
        });
        tokio::spawn(async move { policy::run("here", Instance::MAIN, client, early, tasks, ready).await })
    };
    tokio::time::timeout(PATIENCE, ready).await.context("ready without any policy")??;
    let nobody: IpAddr = "10.1.0.99".parse()?;
    let received = tokio::time::timeout(PATIENCE, early.register("default", "nobody", &[nobody])).await;
    received.context("no wait without policies")?;

    pod(&administrator, "web", "here", "10.1.0.1").await?;
    pod(&administrator, "db", "here", "10.1.0.2").await?;
    pod(&administrator, "far", "there", "10.2.0.1").await?;
    assert_eq!(table(), "", "no policy, no rules");
    let object = json!({
        "metadata": { "name": "of-db" },
        "spec": { "podSelector": { "matchLabels": { "app": "db" } }, "ingress": [{
            "from": [{ "podSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["web", "far"] }] } }],
            "ports": [{ "port": 5432 }],
        }] },
    });
    create::<NetworkPolicy>(&administrator, "default", object).await?;
    shows(
        "the policy",
        &["10.1.0.2 : goto ingress-group", "10.1.0.1, 10.2.0.1", "tcp dport 5432 accept"],
        &[],
    )
    .await;
    policies_apply_before_pod_starts(&administrator, &early).await?;
    // A peer is added, another one terminates and its address may be reused.
    pod(&administrator, "web-2", "there", "10.2.0.9").await?;
    let relabel = json!({ "metadata": { "labels": { "app": "web" } } });
    administrator.patch::<Pod>("default", "web-2", None, &Patch::Merge(relabel)).await?;
    let ended = json!({ "status": { "phase": "Succeeded" } });
    administrator.patch::<Pod>("default", "far", Some("status"), &Patch::Strategic(ended)).await?;
    shows("other peers", &["10.1.0.1, 10.2.0.9"], &["10.2.0.1,", "10.2.0.1 "]).await;
    // The table is deleted externally; the next change restores it.
    let _ = Command::new("nft").args(["delete", "table", "ip", "ferry-policy"]).status();
    pod(&administrator, "web-3", "there", "10.2.0.10").await?;
    administrator
        .patch::<Pod>(
            "default",
            "web-3",
            None,
            &Patch::Merge(json!({ "metadata": { "labels": { "app": "web" } } })),
        )
        .await?;
    shows("all of it again", &["10.1.0.2 : goto ingress-group", "10.2.0.10"], &[]).await;
    administrator.delete::<NetworkPolicy>("default", "of-db", &delete_options(None, None)).await?;
    eventually("no table", PATIENCE, async || table(), String::is_empty).await;

    tasks.stop();
    running.await??;
    tasks.drain(PATIENCE).await.ok();
    server.stop().await
}

#[test]
fn network_policies_become_nftables_rules() -> Result<()> {
    if Command::new("nft").arg("--version").output().is_err() {
        eprintln!("skipped: needs the nft command to look at the rules");
        return Ok(());
    }
    let thread = std::thread::spawn(|| {
        if unshare(&[Namespace::Network]).is_err() {
            eprintln!("skipped: needs the right to make a network namespace");
            return Ok(());
        }
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("failed to run ip")?;
        anyhow::ensure!(up.success(), "no loopback");
        // Its threads are created by this one, so they share its namespace.
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?
            .block_on(session())
    });
    thread.join().expect("the thread")
}
