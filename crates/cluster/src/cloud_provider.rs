//! The cloud controllers as a component: in the process of the control plane, or alone.

use futures_util::future::BoxFuture;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apiserver::outbound::{self, Credentials, Target, Trust};
use async_trait::async_trait;
use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use base::version::user_agent_of;
use client::Client;
pub use cloud::ProviderConfig;
use cloud::http::{CallError, Caller, Http};
use cloud::local::{Local, Pool};
use cloud::{Provider, Settings};
use runtime::{Harness, LeaderElection, LoopMetrics};
use serde_json::Value;

use crate::{ClusterError, chain, components};

/// Default request timeout of a provider: clouds are slow.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Lease name of cloud-controller-manager.
pub(crate) const COMPONENT: &str = "cloud-controller-manager";

/// Provider and its settings.
#[derive(Clone, Debug)]
pub struct CloudConfig {
    pub provider: CloudProvider,
    /// Controllers to run, as in `--controllers`.
    pub controllers: Vec<String>,
    pub cluster_name: String,
    pub cluster_cidrs: Vec<String>,
    pub configure_routes: bool,
    pub node_monitor_period: Duration,
    pub node_status_update_frequency: Duration,
    pub route_reconciliation_period: Option<Duration>,
    pub leader_election: bool,
}

/// Provider by name.
#[derive(Clone, Debug)]
pub enum CloudProvider {
    Local(LocalLoadBalancers),
    /// External provider server.
    Http(ProviderConfig),
}

/// Address source of services without a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLoadBalancers {
    /// Ranges that nodes announce; if empty, the addresses of the nodes are used.
    pub ranges: Vec<String>,
    /// Ports in use by the nodes.
    pub reserved_ports: Vec<u16>,
}

impl CloudConfig {
    /// Kubernetes' defaults.
    #[must_use]
    pub fn new(provider: CloudProvider) -> Self {
        Self {
            provider,
            controllers: vec!["*".to_owned()],
            cluster_name: "kubernetes".to_owned(),
            cluster_cidrs: Vec::new(),
            configure_routes: true,
            node_monitor_period: Duration::from_secs(5),
            node_status_update_frequency: Duration::from_secs(300),
            route_reconciliation_period: None,
            leader_election: false,
        }
    }
}

/// Settings of controllers that assign addresses without a cloud: of nodes, whose `reserved` ports are excluded, or
/// of ranges.
pub(crate) fn local(load_balancers: &LocalLoadBalancers) -> Result<Settings, ClusterError> {
    let LocalLoadBalancers { ranges, reserved_ports } = load_balancers;
    let provider = if ranges.is_empty() {
        Local::of_nodes(reserved_ports.clone())
    } else {
        Local::of_pool(Pool::parse(ranges).map_err(ClusterError::LoadBalancerRange)?)
    };
    Ok(Settings::new(Arc::new(provider)))
}

async fn build(config: &CloudConfig) -> Result<Settings, ClusterError> {
    let mut settings = match &config.provider {
        CloudProvider::Local(load_balancers) => local(load_balancers)?,
        CloudProvider::Http(provider) => {
            let caller = Arc::new(Remote::new(provider)?);
            let provider = Http::connect(caller).await.map_err(ClusterError::CloudProvider)?;
            tracing::info!(provider = provider.name(), "connected to the cloud provider");
            Settings::new(Arc::new(provider))
        }
    };
    settings.cluster_name.clone_from(&config.cluster_name);
    settings.cluster_cidrs.clone_from(&config.cluster_cidrs);
    settings.configure_routes = config.configure_routes;
    settings.node_monitor_period = config.node_monitor_period;
    settings.node_status_update_frequency = config.node_status_update_frequency;
    if let Some(period) = config.route_reconciliation_period {
        settings.route_reconciliation_period = period;
    }
    Ok(settings)
}

/// Starts the controllers in `harness`, which has the settings.
pub(crate) fn start(harness: &Harness, settings: &Settings, controllers: &[String]) {
    for row in cloud::selected(settings, controllers) {
        if let Err(error) = harness.start(row) {
            tracing::error!(
                controller = row.descriptor.name,
                error = chain(&error),
                "failed to start controller"
            );
        }
    }
}

/// Runs the controllers alone, against any API server, until `tasks` stops.
pub fn run_cloud<'a>(
    config: &'a CloudConfig,
    kubeconfig: &'a Path,
    clock: &'a Clock,
    tasks: &'a TaskGroup,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let client = Client::connect(kubeconfig, &user_agent_of(COMPONENT, COMPONENT))
            .map_err(ClusterError::Client)?;
        let settings = build(config).await?;
        let metrics = Metrics::new(clock).map_err(ClusterError::Metrics)?;
        let loop_metrics = LoopMetrics::new(&metrics).map_err(ClusterError::Metrics)?;
        let harness = Harness::new(COMPONENT, client.clone(), Arc::new(client.clone()), clock.clone(), tasks)
            .with_metrics(loop_metrics.clone())
            .with_settings(vec![Box::new(settings.clone())]);
        let controllers = config.controllers.clone();
        let begin = move |harness: &Harness| start(harness, &settings, &controllers);
        if config.leader_election {
            let election = LeaderElection::new(COMPONENT, components::identity()).with_metrics(&loop_metrics);
            let shared = client.clone();
            components::run_while_leading(client, election, clock, tasks, move |scope| {
                begin(&harness.within(shared.clone(), scope));
            });
        } else {
            begin(&harness);
        }
        tasks.stopping().await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks did not stop within the grace period, cancelled");
        }
        Ok(())
    })
}

/// Transport over HTTP and TLS.
struct Remote {
    client: outbound::Client,
    timeout: Duration,
}

impl Remote {
    fn new(config: &ProviderConfig) -> Result<Self, ClusterError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| ClusterError::ReadFile { path: path.clone(), source })
        };
        let identity = match (&config.cert_file, &config.key_file) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let authorities = config.ca_file.as_ref().map(read).transpose()?;
        let trust = Trust { authorities: authorities.into(), identity, server_name: None };
        let target = Target::new(&config.url, &trust).map_err(ClusterError::CloudUrl)?;
        let credentials = config.token_file.clone().map_or(Credentials::None, Credentials::BearerFile);
        let timeout =
            config.timeout_seconds.map_or(REQUEST_TIMEOUT, |seconds| Duration::from_secs(seconds.into()));
        Ok(Self { client: outbound::Client::with_credentials(target, credentials), timeout })
    }
}

#[async_trait]
impl Caller for Remote {
    async fn call(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.client.put(path, body, self.timeout).await.map_err(|error| match error {
            outbound::CallError::Refused { status, body, .. } => {
                CallError::Status { code: status.as_u16(), body }
            }
            error => CallError::Failed(Box::new(error)),
        })
    }
}
