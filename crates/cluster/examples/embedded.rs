//! A control plane inside another program: API server, store, scheduler and controllers, without a node.
//!
//!     cargo run -p cluster --example embedded
//!
//! Creates a namespace through the in-process client, prints all namespaces, and shuts down.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use base::tasks::TaskGroup;
use client::ListOptions;
use cluster::{Config, ControlPlane, SchedulerConfiguration};
use objects::core::v1::Namespace;
use tokio::sync::oneshot;

/// Runs a control plane in `data_dir` and returns the names of its namespaces.
pub async fn namespaces(data_dir: &Path) -> Result<Vec<String>> {
    let mut config = Config::new(data_dir);
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config.components.controllers = vec!["*".to_owned()];
    config.components.scheduler = Some(SchedulerConfiguration::default());

    let tasks = TaskGroup::new();
    let plane = ControlPlane::build(config, tasks.clone()).await?;
    println!("kubeconfig: {}", plane.kubeconfig().display());
    let client = plane.administrator()?;
    let (ready, is_ready) = oneshot::channel();
    let running = tokio::spawn(plane.run(Box::new(move || ready.send(()).unwrap_or_default())));
    tokio::time::timeout(Duration::from_secs(30), is_ready)
        .await
        .context("failed to start the control plane")??;

    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("embedded".to_owned());
    client.create("", &namespace).await?;
    let list = client.list::<Namespace>("", &ListOptions::default()).await?;
    let names = list.items.into_iter().filter_map(|namespace| namespace.metadata.name).collect();

    tasks.stop();
    running.await??;
    Ok(names)
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    for name in namespaces(directory.path()).await? {
        println!("{name}");
    }
    Ok(())
}
