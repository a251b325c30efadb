//! State metrics: in the control plane's process, or alone as `ferry state-metrics`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ::metrics::{InvalidSchedule, StateMetrics, StateMetricsConfig, state_resources};
use base::tasks::TaskGroup;
use base::version::user_agent;
use client::{Client, ClientError};
use controllers::cron_job::schedule::{Schedule, local_zone};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::addons::{binding, ensure, resource};
use crate::{ClusterError, chain};

/// The user of the component inside the control plane's process.
pub(crate) const USER: &str = "system:serviceaccount:kube-system:ferry-state-metrics";
const ROLE: &str = "ferry:state-metrics";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Settings of the port of state metrics.
#[derive(Clone, Debug)]
pub struct StateMetricsPort {
    pub address: SocketAddr,
    pub metrics: StateMetricsConfig,
}

impl StateMetricsPort {
    /// Serves until `tasks` stop. Returns the address.
    pub(crate) fn open(&self, client: Client, tasks: &TaskGroup) -> Result<SocketAddr, ClusterError> {
        let purpose = "state metrics";
        let (listener, address) = apiserver::serve::bind(self.address).map_err(ClusterError::Listen)?;
        tracing::info!(%address, purpose, "listening");
        let component = StateMetrics::new(self.metrics.clone(), client, next_schedule, tasks);
        let (listener, group) = (Arc::new(listener), tasks.clone());
        tasks.supervise("state-metrics", move || {
            Arc::clone(&component).serve(Arc::clone(&listener), group.clone())
        });
        Ok(address)
    }
}

/// First time of a cron schedule, by the rules of the controller.
fn next_schedule(
    schedule: &str,
    zone: Option<&str>,
    after: Timestamp,
) -> Result<Option<Timestamp>, InvalidSchedule> {
    let parsed = match zone {
        Some(zone) => Schedule::parse(&format!("CRON_TZ={zone} {schedule}")),
        None => Schedule::parse(schedule),
    };
    Ok(parsed.map_err(|_| InvalidSchedule)?.next(after, &local_zone()))
}

/// Creates the role of the component, unless it exists: it lists the kinds that have series.
pub(crate) async fn install(administrator: &Client) -> Result<(), ClientError> {
    let rules: Vec<Value> = state_resources()
        .map(|(group, resource)| json!({"apiGroups": [group], "resources": [resource], "verbs": ["list"]}))
        .collect();
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": ROLE}, "rules": rules,
    });
    ensure(administrator, &resource(RBAC, "clusterroles", false), "", &role).await?;
    let bound = binding("ClusterRoleBinding", ROLE, "", ("ClusterRole", ROLE), ("User", USER));
    ensure(administrator, &resource(RBAC, "clusterrolebindings", false), "", &bound).await
}

/// Serves the state of any cluster until `tasks` stop. An empty `kubeconfig` means the configuration of a pod. `ready`
/// gets the address once it listens.
pub fn run_state_metrics<'a>(
    port: StateMetricsPort,
    kubeconfig: PathBuf,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce(SocketAddr) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let client =
            Client::connect(&kubeconfig, &user_agent("kube-state-metrics")).map_err(ClusterError::Client)?;
        ready(port.open(client, tasks)?);
        tasks.stopping().await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks were cancelled");
        }
        Ok(())
    })
}
