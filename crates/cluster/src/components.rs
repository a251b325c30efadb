//! The components that act on the cluster: the controllers, and whatever else is a client of the API. Compiled into the
//! control plane they use clients inside the process; alone they use a kubeconfig. They cannot tell the difference.
//!
//! A new component adds its configuration to [`Components`], and a step to [`start`].

use futures_util::future::BoxFuture;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use client::Client;
use controllers::certificate::signing::{Signers, SigningAuthority};
use controllers::node_ipam::{Cidr, ClusterCidrs};
use controllers::service_account_token::LegacyTokens;
use proxy::health::MetricsPort;
use runtime::{Harness, Identities, LeaderElection, Leading, LoopMetrics, lead};

use crate::accounts::Accounts;
use crate::{ClusterError, LocalLoadBalancers, StatusPort, chain, cloud_provider, scheduling};

/// The part of a range that a node gets: Kubernetes' values.
const NODE_MASK: u8 = 24;
const NODE_MASK_V6: u8 = 64;
/// Who the controllers' informers are.
const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

/// Which components run, and how.
#[derive(Clone, Debug, Default)]
pub struct Components {
    /// The controllers to run, as `--controllers` says: `*`, a name, or `-` and a name. None if empty.
    pub controllers: Vec<String>,
    pub settings: controllers::Settings,
    /// Ranges of pod addresses, of which nodes get their part; none if empty.
    pub cluster_cidrs: Vec<String>,
    /// Certificate and key, in PEM, of the authority of client certificates and of kubelets' serving certificates;
    /// without them nothing is signed.
    pub signing: Option<(String, String)>,
    /// How tokens that are kept in secrets are signed; none are made if absent.
    pub legacy_tokens: Option<LegacyTokens>,
    /// Whether each loop that runs alone is its service account; else all are whom the kubeconfig says.
    pub service_account_credentials: bool,
    /// Whether to wait for a lease before acting; needed wherever several processes serve one cluster.
    pub leader_election: bool,
    /// How the scheduler is configured; there is none if absent.
    pub scheduler: Option<scheduler::Configuration>,
    /// Whether the objects are created by which nodes join, and that their parts need.
    pub addons: bool,
    /// How the cluster's name service is set up; there is none if absent.
    pub dns: Option<crate::DnsConfig>,
    /// Where components that run alone tell how they do: `/healthz`, `/livez`, `/readyz` and `/metrics`.
    pub status: Option<StatusPort>,
    /// Where services of type LoadBalancer get addresses from; somebody else gives them, if absent.
    pub load_balancers: Option<LocalLoadBalancers>,
}

impl Components {
    /// Everything a control plane has.
    #[must_use]
    pub fn all() -> Self {
        let scheduler = Some(scheduler::Configuration::default());
        Self { controllers: vec!["*".to_owned()], scheduler, ..Self::default() }
    }
}

/// Starts the components in `tasks`. With leader election, they begin when they lead, and `tasks` stops when they no
/// longer do.
pub(crate) fn start(
    components: &Components,
    shared: &dyn Fn(&str) -> Result<Client, ClusterError>,
    identities: &Arc<dyn Identities>,
    metrics: &Metrics,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    if components.controllers.is_empty() && components.scheduler.is_none() {
        return Ok(());
    }
    let rows = controllers::selected(&components.controllers).map_err(ClusterError::Controllers)?;
    let client = shared(CONTROLLER_MANAGER)?;
    let mut settings = settings(components)?;
    let cloud = components.load_balancers.as_ref().map(cloud_provider::local).transpose()?;
    if let Some(cloud) = &cloud {
        settings.push(Box::new(cloud.clone()));
    }
    let harness = Harness::new(client.clone(), Arc::clone(identities), clock.clone(), tasks)
        .with_metrics(LoopMetrics::new(metrics).map_err(ClusterError::Metrics)?)
        .with_settings(settings);
    if let Some(configuration) = &components.scheduler {
        scheduling::start(configuration, components.leader_election, &harness, metrics, clock, tasks)?;
    }
    if rows.is_empty() {
        return Ok(());
    }
    let begin = move || {
        for row in &rows {
            if let Err(error) = harness.start(row) {
                tracing::error!(controller = row.descriptor.name, error = chain(&error), "cannot start");
            }
        }
        if let Some(cloud) = &cloud {
            cloud_provider::start(&harness, cloud, &["*".to_owned()]);
        }
        tracing::info!(controllers = rows.len(), "started the controllers");
    };
    if components.leader_election {
        lead_then(client, "kube-controller-manager", clock, tasks, begin);
    } else {
        begin();
    }
    Ok(())
}

/// What loops find by its type.
fn settings(components: &Components) -> Result<Vec<Box<dyn Any + Send + Sync>>, ClusterError> {
    let mut settings: Vec<Box<dyn Any + Send + Sync>> = vec![Box::new(components.settings.clone())];
    let mut ranges = Vec::new();
    for text in &components.cluster_cidrs {
        let range = Cidr::parse(text).map_err(ClusterError::ClusterCidr)?;
        ranges.push((range, if text.contains(':') { NODE_MASK_V6 } else { NODE_MASK }));
    }
    settings.push(Box::new(ClusterCidrs { ranges, reserved: Vec::new() }));
    if let Some(tokens) = &components.legacy_tokens {
        settings.push(Box::new(tokens.clone()));
    }
    if let Some((certificate, key)) = &components.signing {
        let authority = || SigningAuthority::from_pem(certificate, key).map_err(ClusterError::Signing);
        settings.push(Box::new(Signers { client: authority()?, serving: authority()? }));
    }
    Ok(settings)
}

/// Signs tokens with the private key of a file, in PEM; what secrets say of the API server's authority is `root_ca`.
pub fn legacy_tokens(path: &Path, root_ca: String) -> Result<LegacyTokens, ClusterError> {
    let read = |source| ClusterError::ReadFile { path: path.to_owned(), source };
    let text = std::fs::read(path).map_err(read)?;
    let key = apiserver::SigningKey::from_pem(&text)
        .map_err(|error| ClusterError::BadFile { path: path.to_owned(), reason: error.to_string() })?;
    Ok(LegacyTokens { sign: Arc::new(move |claims| key.sign(claims).ok()), root_ca })
}

/// Calls `begin` once this process leads; ends the process' tasks when it no longer does, as Kubernetes' components end.
pub(crate) fn lead_then(
    client: Client,
    lease: &'static str,
    clock: &Clock,
    tasks: &TaskGroup,
    begin: impl FnOnce() + Send + 'static,
) {
    let host = base::addresses::hostname().unwrap_or_else(|| "localhost".to_owned());
    let election = LeaderElection::new(lease, format!("{host}_{}", uuid::Uuid::new_v4()));
    let (clock, group) = (clock.clone(), tasks.clone());
    tasks.spawn(async move {
        if lead(&client, &election, &clock, &group, begin).await == Leading::Lost {
            group.stop();
        }
    });
}

/// Runs components alone, against any API server, until `tasks` stops.
pub fn run_alone<'a>(
    components: &'a Components,
    kubeconfig: &'a Path,
    clock: &'a Clock,
    tasks: &'a TaskGroup,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let client = Client::connect(kubeconfig, "ferry").map_err(ClusterError::Client)?;
        let identities: Arc<dyn Identities> = if components.service_account_credentials {
            Arc::new(Accounts::new(client.clone(), kubeconfig).map_err(ClusterError::Client)?)
        } else {
            Arc::new(client.clone())
        };
        let metrics = Metrics::new(clock).map_err(ClusterError::Metrics)?;
        start(components, &|_| Ok(client.clone()), &identities, &metrics, clock, tasks)?;
        if let Some(port) = components.status {
            let answer = Arc::new(MetricsPort { mode: None, metrics });
            port.open("the component's health and metrics", answer, tasks).await?;
        }
        tasks.stopping().await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks were cancelled");
        }
        Ok(())
    })
}

/// Runs simulated nodes against any API server until `tasks` stops, then takes them out again.
pub fn run_simulation<'a>(
    fleet: simulate::Fleet,
    kubeconfig: &'a Path,
    clock: &'a Clock,
    tasks: &'a TaskGroup,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let client = Client::connect(kubeconfig, "ferry simulate").map_err(ClusterError::Client)?;
        simulate::start(&client, fleet.clone(), clock, tasks).await.map_err(ClusterError::Client)?;
        tasks.stopping().await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks were cancelled");
        }
        simulate::remove(&client, &fleet).await.map_err(ClusterError::Client)
    })
}
