//! A server with loops, an administrator, and simulated kubelets.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, DeleteOptions, ListOptions, Patch};
use objects::core::v1::Pod;
use runtime::Harness;
use serde_json::json;
use testkit::Server;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct World {
    pub server: Server,
    pub admin: Client,
    pub loops: TaskGroup,
    /// Clock of loops that are started over TCP.
    pub clock: Clock,
}

impl World {
    /// A server whose own process runs the loops, each with its own permissions.
    pub async fn inside(controllers: &str) -> Result<Self> {
        let controllers: Vec<String> = controllers.split(',').map(str::to_owned).collect();
        let server = Server::start_with(|config| config.components.controllers = controllers).await?;
        let admin = Client::connect(&server.kubeconfig, "admin")?;
        Ok(Self { server, admin, loops: TaskGroup::new(), clock: Clock::system() })
    }

    /// A server without loops; [`World::start_loops`] starts them as clients over TCP.
    pub async fn outside() -> Result<Self> {
        let server = Server::start().await?;
        let admin = Client::connect(&server.kubeconfig, "admin")?;
        Ok(Self { server, admin, loops: TaskGroup::new(), clock: Clock::system() })
    }

    pub fn start_loops(&mut self, controllers: &str) -> Result<()> {
        self.loops = TaskGroup::new();
        let identities = Arc::new(self.admin.clone());
        let harness = Harness::new(
            "kube-controller-manager",
            self.admin.clone(),
            identities,
            self.clock.clone(),
            &self.loops,
        );
        let names: Vec<String> = controllers.split(',').map(str::to_owned).collect();
        for row in controllers::selected(&names)? {
            harness.start(row)?;
        }
        Ok(())
    }

    /// Kills the loops.
    pub fn kill_loops(&self) {
        self.loops.abort();
    }

    pub async fn pods(&self, ns: &str) -> Vec<Pod> {
        let mut pods = self.admin.list::<Pod>(ns, &ListOptions::default()).await.expect("lists").items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// Simulates kubelets: runs pending pods, removes terminating ones.
    pub async fn run_pods(&self, ns: &str) {
        let ready = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        ]}});
        let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        for pod in self.admin.list::<Pod>(ns, &ListOptions::default()).await.expect("lists").items {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
            // A pod may already be deleted, which is fine.
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = self.admin.delete::<Pod>(ns, name, &now).await;
            } else if !running {
                let _ =
                    self.admin.patch::<Pod>(ns, name, Some("status"), &Patch::Strategic(ready.clone())).await;
            }
        }
    }

    pub async fn stop(self) -> Result<()> {
        self.loops.drain(PATIENCE).await?;
        self.server.stop().await
    }
}
