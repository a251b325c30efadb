//! Nodes that exist in the API only. They heartbeat, run and delete pods, and complete those that run to completion;
//! no packet is sent and no process started. Controllers can be tested and measured with thousands of them on one
//! machine.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod addresses;
mod heartbeat;
mod kubelet;
mod node;
mod pods;
mod registration;

use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError};
use runtime::{Harness, Row};

pub use kubelet::KubeletError;

/// Properties of the nodes.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub nodes: usize,
    /// Prefix of node names.
    pub prefix: String,
    pub pods_per_node: u32,
    pub cpu: String,
    pub memory: String,
    pub zones: usize,
    /// Run time of pods that run to completion.
    pub run_time: Duration,
    /// Port of the kubelets, which then answer `/metrics/resource` and `/stats/summary` on loopback addresses; 0 is any
    /// free port. They are not served without one.
    pub kubelet_port: Option<u16>,
}

/// Reason why a fleet was not started.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            nodes: 10,
            prefix: "sim-".to_owned(),
            pods_per_node: 110,
            cpu: "32".to_owned(),
            memory: "256Gi".to_owned(),
            zones: 3,
            run_time: Duration::from_secs(1),
            kubelet_port: None,
        }
    }
}

impl Fleet {
    #[must_use]
    pub fn name(&self, number: usize) -> String {
        format!("{}{number:05}", self.prefix)
    }

    /// Index of a node by its name.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<usize> {
        let number: usize = name.strip_prefix(&self.prefix)?.parse().ok()?;
        (number < self.nodes && self.name(number) == name).then_some(number)
    }
}

/// Registers the nodes of a fleet and runs them in `tasks`.
pub fn start<'a>(
    client: &'a Client,
    mut fleet: Fleet,
    clock: &'a Clock,
    tasks: &'a TaskGroup,
) -> BoxFuture<'a, Result<(), FleetError>> {
    Box::pin(async move {
        if let Some(port) = fleet.kubelet_port {
            let shared = Arc::new(fleet.clone());
            fleet.kubelet_port = Some(kubelet::serve(client, &shared, port, clock, tasks).await?);
        }
        registration::all(client, &fleet, clock).await?;
        let fleet = Arc::new(fleet);
        heartbeat::start(client.clone(), Arc::clone(&fleet), clock.clone(), tasks);
        registration::keep_ready(client.clone(), Arc::clone(&fleet), clock.clone(), tasks);
        let harness = Harness::new("kubelet", client.clone(), Arc::new(client.clone()), clock.clone(), tasks)
            .with_settings(vec![Box::new(Arc::clone(&fleet))]);
        harness.start(&Row { descriptor: &pods::DESCRIPTOR, build: pods::build, by_default: true })?;
        tracing::info!(nodes = fleet.nodes, "started simulated nodes");
        Ok(())
    })
}

/// Ensures that one of the nodes exists and is ready, also after a deletion.
pub fn register<'a>(
    client: &'a Client,
    fleet: &'a Fleet,
    number: usize,
    clock: &'a Clock,
) -> BoxFuture<'a, Result<(), ClientError>> {
    Box::pin(async move { node::register(client, fleet, number, clock.now()).await })
}

/// Removes the nodes of a fleet from the cluster.
pub fn remove<'a>(client: &'a Client, fleet: &'a Fleet) -> BoxFuture<'a, Result<(), ClientError>> {
    Box::pin(async move {
        for number in 0..fleet.nodes {
            node::remove(client, &fleet.name(number)).await?;
        }
        Ok(())
    })
}
