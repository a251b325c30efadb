//! The components that act on the cluster: the controllers, and whatever else is a client of the API. Compiled into the
//! control plane they use clients inside the process; alone they use a kubeconfig. They cannot tell the difference.
//!
//! A new component adds its configuration to [`Components`], and a step to [`start`].

use futures_util::future::BoxFuture;
use std::any::Any;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use client::Client;
use controllers::certificate::signing::{Signers, SigningAuthority};
use controllers::node_ipam::{Cidr, ClusterCidrs};
use controllers::service_account_token::LegacyTokens;
use parking_lot::Mutex;
use proxy::health::MetricsPort;
use runtime::{Harness, Identities, LeaderElection, Leading, LoopMetrics, lead};

use crate::accounts::Accounts;
use crate::{ClusterError, LocalLoadBalancers, StatusPort, chain, cloud_provider, scheduling};

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
    pub node_masks: NodeMasks,
    /// Ranges of services, of which no node may get a part.
    pub service_cidrs: Vec<String>,
    /// Workers of controllers, by their names, where they are not the default.
    pub workers: runtime::Workers,
    /// Certificate and key, in PEM, of the authority of client certificates and of kubelets' serving certificates;
    /// without them nothing is signed.
    pub signing: Option<(String, String)>,
    /// Authorities of single signers, by their names; signers without one then sign nothing.
    pub signers: Vec<(&'static str, (String, String))>,
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

/// Prefix lengths of the part of a range that a node gets. The defaults are Kubernetes'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMasks {
    pub v4: u8,
    pub v6: u8,
}

impl Default for NodeMasks {
    fn default() -> Self {
        Self { v4: 24, v6: 64 }
    }
}

impl Components {
    /// Everything a control plane has.
    #[must_use]
    pub fn all() -> Self {
        let scheduler = Some(scheduler::Configuration::default());
        Self { controllers: vec!["*".to_owned()], scheduler, ..Self::default() }
    }
}

/// Starts the components in `tasks`. With leader election, they run while they lead.
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
        let election = components.leader_election.then(|| client.clone());
        scheduling::start(configuration, election, &harness, metrics, clock, tasks)?;
    }
    if rows.is_empty() {
        return Ok(());
    }
    let begin = move |harness: &Harness| {
        for row in &rows {
            if let Err(error) = harness.start(row) {
                tracing::error!(controller = row.descriptor.name, error = chain(&error), "cannot start");
            }
        }
        if let Some(cloud) = &cloud {
            cloud_provider::start(harness, cloud, &["*".to_owned()]);
        }
        tracing::info!(controllers = rows.len(), "started the controllers");
    };
    if components.leader_election {
        let election = LeaderElection::new("kube-controller-manager", identity());
        let shared = client.clone();
        lead_then(client, election, clock, tasks, move |scope| begin(&harness.within(shared.clone(), scope)));
    } else {
        begin(&harness);
    }
    Ok(())
}

/// What loops find by its type.
fn settings(components: &Components) -> Result<Vec<Box<dyn Any + Send + Sync>>, ClusterError> {
    let mut settings: Vec<Box<dyn Any + Send + Sync>> = vec![Box::new(components.settings.clone())];
    let mut ranges = Vec::new();
    for text in &components.cluster_cidrs {
        let range = Cidr::parse(text).map_err(ClusterError::ClusterCidr)?;
        let masks = components.node_masks;
        ranges.push((range, if text.contains(':') { masks.v6 } else { masks.v4 }));
    }
    let reserved = components.service_cidrs.iter().map(|text| Cidr::parse(text));
    let reserved = reserved.collect::<Result<_, _>>().map_err(ClusterError::ClusterCidr)?;
    settings.push(Box::new(ClusterCidrs { ranges, reserved }));
    settings.push(Box::new(components.workers.clone()));
    if let Some(tokens) = &components.legacy_tokens {
        settings.push(Box::new(tokens.clone()));
    }
    let authority = |(certificate, key): &(String, String)| {
        SigningAuthority::from_pem(certificate, key).map_err(ClusterError::Signing)
    };
    if !components.signers.is_empty() {
        let mut signers = Signers::default();
        for (signer, files) in &components.signers {
            signers.set(signer, authority(files)?);
        }
        settings.push(Box::new(signers));
    } else if let Some(files) = &components.signing {
        settings.push(Box::new(Signers::all(authority(files)?)));
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

/// Name of this process among the candidates of a lease.
pub(crate) fn identity() -> String {
    let host = base::addresses::hostname().unwrap_or_else(|| "localhost".to_owned());
    format!("{host}_{}", uuid::Uuid::new_v4())
}

/// Calls `begin` whenever this process has become the leader. What it starts runs in the group it is given, which is
/// cancelled when the lease is lost; the process then is a candidate again.
pub(crate) fn lead_then(
    client: Client,
    election: LeaderElection,
    clock: &Clock,
    tasks: &TaskGroup,
    begin: impl FnMut(&TaskGroup) + Send + 'static,
) {
    let (clock, begin) = (clock.clone(), Arc::new(Mutex::new(begin)));
    tasks.supervise_scope(format!("leader-election {}", election.name), move |scope| {
        let (client, election, clock) = (client.clone(), election.clone(), clock.clone());
        let begin = Arc::clone(&begin);
        async move {
            match lead(&client, &election, &clock, &scope, || (begin.lock())(&scope)).await {
                Leading::Stopped => ControlFlow::Break(()),
                Leading::Lost => ControlFlow::Continue(()),
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use objects::coordination::v1::Lease;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use testkit::eventually;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Counts the tasks that run.
    struct Running(Arc<AtomicUsize>);

    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    async fn give_lease_to(client: &Client, holder: &str) {
        let given = async || {
            let mut lease: Lease = client.get("kube-system", "test").await.ok()?;
            lease.spec.get_or_insert_default().holder_identity = Some(holder.to_owned());
            client.update(&lease).await.ok()
        };
        eventually("the lease is written", LIMIT, given, Option::is_some).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn lost_lease_cancels_what_it_guards_and_is_sought_again() {
        let server = testkit::Server::start().await.expect("a server");
        let client = Client::connect(&server.kubeconfig, "test").expect("a client");
        let (starts, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (started, runs) = (Arc::clone(&starts), Arc::clone(&running));
        let mut election = LeaderElection::new("test", "this process");
        election.retry_period = Duration::from_millis(100);
        let tasks = TaskGroup::new();
        lead_then(client.clone(), election, &Clock::system(), &tasks, move |scope| {
            started.fetch_add(1, Ordering::SeqCst);
            runs.fetch_add(1, Ordering::SeqCst);
            let counted = Running(Arc::clone(&runs));
            scope.spawn(async move {
                let _counted = counted;
                std::future::pending().await
            });
        });
        let seen = async || (starts.load(Ordering::SeqCst), running.load(Ordering::SeqCst));
        eventually("it leads", LIMIT, seen, |seen| *seen == (1, 1)).await;
        give_lease_to(&client, "another process").await;
        eventually("what it started is cancelled", LIMIT, seen, |seen| *seen == (1, 0)).await;
        assert!(!tasks.is_stopping(), "the rest of the process goes on");
        give_lease_to(&client, "").await;
        eventually("it leads again", LIMIT, seen, |seen| *seen == (2, 1)).await;
        assert!(tasks.supervision().restarts("leader-election test") >= 1);
        let _ = tasks.drain(Duration::from_secs(5)).await;
        server.stop().await.expect("stopped");
    }
}
