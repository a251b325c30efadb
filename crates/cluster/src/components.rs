//! Components that act on the cluster: the controllers, and other clients of the API. Within the control plane they
//! use in-process clients; alone they use a kubeconfig. Both behave the same.
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
use base::version::user_agent_of;
use base::zpages::PageSettings;
use client::Client;
use controllers::node_ipam::{ClusterCidrs, parse_cidr};
use controllers::service_account_token::LegacyTokens;
use metrics::ResourceMetricsConfig;
use parking_lot::Mutex;
use runtime::{Harness, Identities, LeaderElection, Leading, LoopMetrics, lead};
use serde_json::Value;

use crate::accounts::Accounts;
use crate::component_checks::{ActiveInformers, ComponentChecks};
use crate::component_configs;
use crate::signing::{self, SigningPair};
use crate::{ClusterError, ComponentPort, LocalLoadBalancers, chain, cloud_provider, scheduling};

/// User of the controllers' informers.
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const CONTROLLER_MANAGER_USER: &str = "system:kube-controller-manager";

/// Enabled components and their configuration.
#[derive(Clone, Debug, Default)]
pub struct Components {
    /// Controllers to run, as in `--controllers`: `*`, a name, or `-` and a name. None if empty.
    pub controllers: Vec<String>,
    pub settings: controllers::Settings,
    /// Pod CIDRs, of which each node is allocated a part; none if empty.
    pub cluster_cidrs: Vec<String>,
    pub node_masks: NodeMasks,
    /// Service CIDRs, excluded from node allocation.
    pub service_cidrs: Vec<String>,
    /// Workers by controller, where not the default.
    pub workers: runtime::Workers,
    /// Certificate and key, in PEM, of the authority of client certificates and of kubelets' serving certificates;
    /// without them nothing is signed.
    pub signing: Option<SigningPair>,
    /// Authorities by signer; signers without one then sign nothing.
    pub signers: Vec<(&'static str, SigningPair)>,
    /// Signer of secret tokens; none are created if absent.
    pub legacy_tokens: Option<LegacyTokens>,
    /// If true, each controller that runs alone uses its service account; otherwise all use the kubeconfig's
    /// identity.
    pub service_account_credentials: bool,
    /// Tracer of the controllers.
    pub tracer: base::trace::Tracer,
    /// Leader election; required if several processes serve one cluster.
    pub leader_election: bool,
    /// Scheduler configuration; disabled if absent.
    pub scheduler: Option<scheduler::Configuration>,
    /// Creates the objects that nodes need to join and run.
    pub addons: bool,
    /// Configuration of cluster DNS; disabled if absent.
    pub dns: Option<crate::DnsConfig>,
    /// Settings of resource metrics in this process; metrics.k8s.io is not served by it if absent.
    pub metrics: Option<ResourceMetricsConfig>,
    /// Port of state metrics; they are not served if absent.
    pub state_metrics: Option<crate::StateMetricsPort>,
    /// HTTPS ports of health, metrics and pages about the process.
    pub ports: Vec<ComponentPort>,
    /// Address source of services of type LoadBalancer; unmanaged if absent.
    pub load_balancers: Option<LocalLoadBalancers>,
}

/// Prefix lengths of node CIDRs. The defaults are Kubernetes'.
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
    /// All components of a control plane.
    #[must_use]
    pub fn all() -> Self {
        let scheduler = Some(scheduler::Configuration::default());
        Self { controllers: vec!["*".to_owned()], scheduler, ..Self::default() }
    }
}

/// Health checks, configurations and metrics that the ports of started components serve.
pub(crate) struct StartedComponents {
    pub checks: ComponentChecks,
    controllers: Value,
    scheduler: Option<Value>,
}

impl StartedComponents {
    fn new(components: &Components) -> Self {
        Self {
            checks: ComponentChecks::default(),
            controllers: component_configs::of_controllers(components),
            scheduler: components.scheduler.as_ref().map(|configuration| {
                component_configs::of_scheduler(configuration, components.leader_election)
            }),
        }
    }

    /// Name and content of the configuration of a component.
    pub fn configz(&self, component: &str, pages: PageSettings) -> Option<(&'static str, Value)> {
        let (name, mut configuration, profiling) = match component {
            "kube-scheduler" => ("componentconfig", self.scheduler.clone()?, "/enableProfiling"),
            _ => {
                let profiling = "/Generic/Debugging/EnableProfiling";
                (component_configs::CONTROLLERS_GROUP, self.controllers.clone(), profiling)
            }
        };
        if let Some(field) = configuration.pointer_mut(profiling) {
            *field = pages.profiling.into();
        }
        Some((name, configuration))
    }
}

/// Starts the components in `tasks`. With leader election, they run while this process holds the lease.
pub(crate) fn start(
    components: &Components,
    shared: &dyn Fn(&str) -> Result<Client, ClusterError>,
    identities: &Arc<dyn Identities>,
    metrics: &Metrics,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<StartedComponents, ClusterError> {
    let started = StartedComponents::new(components);
    if components.controllers.is_empty() && components.scheduler.is_none() {
        return Ok(started);
    }
    let rows = controllers::selected(&components.controllers).map_err(ClusterError::Controllers)?;
    let (component, agent) = component_of(components);
    let client = shared(CONTROLLER_MANAGER_USER)?.called(&agent);
    let ignored = controllers::without_effect(&components.controllers);
    if !ignored.is_empty() {
        tracing::warn!(controllers = ignored.join(", "), "controllers of --controllers have no effect");
    }
    let mut settings = settings(components, tasks)?;
    let cloud = components.load_balancers.as_ref().map(cloud_provider::local).transpose()?;
    if let Some(cloud) = &cloud {
        settings.push(Box::new(cloud.clone()));
    }
    if !rows.is_empty() {
        let own = controllers::ControllerMetrics::new(metrics).map_err(ClusterError::Metrics)?;
        settings.push(Box::new(own));
    }
    let loop_metrics = LoopMetrics::new(metrics).map_err(ClusterError::Metrics)?;
    client::register_metrics(metrics).map_err(ClusterError::Metrics)?;
    let shared = client.called(&user_agent_of(component, "shared-informers"));
    let harness = Harness::new(component, shared.clone(), Arc::clone(identities), clock.clone(), tasks)
        .with_metrics(loop_metrics.clone())
        .with_tracer(components.tracer.clone())
        .with_settings(settings);
    if let Some(configuration) = &components.scheduler {
        let election = components.leader_election.then(|| client.called(&scheduling::user_agent()));
        let harness = harness.of_component(scheduling::COMPONENT);
        scheduling::start(configuration, election, &harness, metrics, &started.checks, clock, tasks)?;
    }
    if rows.is_empty() {
        return Ok(started);
    }
    let names: Vec<_> = rows.iter().map(|row| row.descriptor.name).collect();
    let active = ActiveInformers::default();
    let informers = active.clone();
    let begin = move |harness: &Harness| {
        informers.set(harness.informers());
        for row in &rows {
            if let Err(error) = harness.start(row) {
                tracing::error!(
                    controller = row.descriptor.name,
                    error = chain(&error),
                    "failed to start controller"
                );
            }
        }
        if let Some(cloud) = &cloud {
            let harness = harness.of_component(cloud_provider::COMPONENT);
            cloud_provider::start(&harness, cloud, &["*".to_owned()]);
        }
        tracing::info!(controllers = rows.len(), "started controllers");
    };
    if components.leader_election {
        let election = LeaderElection::new(CONTROLLER_MANAGER, identity()).with_metrics(&loop_metrics);
        started.checks.add_controllers(names, Some(&election), &active, tasks);
        run_while_leading(client, election, clock, tasks, move |scope| {
            begin(&harness.within(shared.clone(), scope));
        });
    } else {
        started.checks.add_controllers(names, None, &active, tasks);
        begin(&harness);
    }
    Ok(started)
}

/// Component that owns the shared informers, and the User-Agent of its client, as in Kubernetes.
fn component_of(components: &Components) -> (&'static str, String) {
    if components.controllers.is_empty() && components.scheduler.is_some() {
        return (scheduling::COMPONENT, scheduling::user_agent());
    }
    (CONTROLLER_MANAGER, user_agent_of(CONTROLLER_MANAGER, CONTROLLER_MANAGER))
}

/// Settings that controllers look up by type.
fn settings(
    components: &Components,
    tasks: &TaskGroup,
) -> Result<Vec<Box<dyn Any + Send + Sync>>, ClusterError> {
    let mut settings: Vec<Box<dyn Any + Send + Sync>> = vec![Box::new(components.settings.clone())];
    let mut ranges = Vec::new();
    for text in &components.cluster_cidrs {
        let range = parse_cidr(text).map_err(ClusterError::ClusterCidr)?;
        let masks = components.node_masks;
        ranges.push((range, if text.contains(':') { masks.v6 } else { masks.v4 }));
    }
    let reserved = components.service_cidrs.iter().map(|text| parse_cidr(text));
    let reserved = reserved.collect::<Result<_, _>>().map_err(ClusterError::ClusterCidr)?;
    settings.push(Box::new(ClusterCidrs { ranges, reserved }));
    settings.push(Box::new(components.workers.clone()));
    if let Some(tokens) = &components.legacy_tokens {
        settings.push(Box::new(tokens.clone()));
    }
    if let Some(signers) = signing::signers(components, tasks)? {
        settings.push(Box::new(signers));
    }
    Ok(settings)
}

/// Signs tokens with the private key of a PEM file; secrets contain `root_ca` as the API server's authority.
pub fn legacy_tokens(path: &Path, root_ca: String) -> Result<LegacyTokens, ClusterError> {
    let read = |source| ClusterError::ReadFile { path: path.to_owned(), source };
    let text = std::fs::read(path).map_err(read)?;
    let key = apiserver::SigningKey::from_pem(&text)
        .map_err(|error| ClusterError::BadFile { path: path.to_owned(), reason: error.to_string() })?;
    Ok(LegacyTokens { sign: Arc::new(move |claims| key.sign(claims).ok()), root_ca })
}

/// Leader election identity of this process.
pub(crate) fn identity() -> String {
    let host = base::addresses::hostname().unwrap_or_else(|| "localhost".to_owned());
    format!("{host}_{}", uuid::Uuid::new_v4())
}

/// Calls `begin` whenever this process acquires the lease. Tasks that it starts run in the given group, which is
/// cancelled when the lease is lost; then the process is a candidate again.
pub(crate) fn run_while_leading(
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
        let client =
            Client::connect(kubeconfig, &component_of(components).1).map_err(ClusterError::Client)?;
        let identities: Arc<dyn Identities> = if components.service_account_credentials {
            Arc::new(Accounts::new(client.clone(), kubeconfig).map_err(ClusterError::Client)?)
        } else {
            Arc::new(client.clone())
        };
        let metrics = Metrics::new(clock).map_err(ClusterError::Metrics)?;
        base::version::register_build_info(&metrics).map_err(ClusterError::Metrics)?;
        let started = start(components, &|_| Ok(client.clone()), &identities, &metrics, clock, tasks)?;
        for port in components.ports.clone() {
            port.open(client.clone(), &metrics, &started, clock, tasks)?;
        }
        tasks.stopping().await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks did not stop within the grace period, cancelled");
        }
        Ok(())
    })
}

/// Runs simulated nodes against any API server until `tasks` stops, then removes them.
pub fn run_simulation<'a>(
    fleet: simulate::Fleet,
    kubeconfig: &'a Path,
    clock: &'a Clock,
    tasks: &'a TaskGroup,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let client = Client::connect(kubeconfig, &user_agent_of("kubelet", "simulated"))
            .map_err(ClusterError::Client)?;
        simulate::start(&client, fleet.clone(), clock, tasks).await.map_err(ClusterError::Simulation)?;
        tasks.stopping().await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks did not stop within the grace period, cancelled");
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

    /// Counts running tasks.
    struct Running(Arc<AtomicUsize>);

    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    async fn set_lease_holder(client: &Client, holder: &str) {
        let given = async || {
            let mut lease: Lease = client.get("kube-system", "test").await.ok()?;
            lease.spec.get_or_insert_default().holder_identity = Some(holder.to_owned());
            client.update(&lease).await.ok()
        };
        eventually("the lease is written", LIMIT, given, Option::is_some).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn lost_lease_cancels_tasks_and_is_reacquired() {
        let server = testkit::Server::start().await.expect("a server");
        let client = Client::connect(&server.kubeconfig, "test").expect("a client");
        let (starts, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (started, runs) = (Arc::clone(&starts), Arc::clone(&running));
        let mut election = LeaderElection::new("test", "this process");
        election.retry_period = Duration::from_millis(100);
        let tasks = TaskGroup::new();
        run_while_leading(client.clone(), election, &Clock::system(), &tasks, move |scope| {
            started.fetch_add(1, Ordering::SeqCst);
            runs.fetch_add(1, Ordering::SeqCst);
            let counted = Running(Arc::clone(&runs));
            scope.spawn(async move {
                let _counted = counted;
                std::future::pending().await
            });
        });
        let seen = async || (starts.load(Ordering::SeqCst), running.load(Ordering::SeqCst));
        eventually("the lease is acquired", LIMIT, seen, |seen| *seen == (1, 1)).await;
        set_lease_holder(&client, "another process").await;
        eventually("its tasks are cancelled", LIMIT, seen, |seen| *seen == (1, 0)).await;
        assert!(!tasks.is_stopping(), "the process keeps running");
        set_lease_holder(&client, "").await;
        eventually("the lease is reacquired", LIMIT, seen, |seen| *seen == (2, 1)).await;
        assert!(tasks.supervision().restarts("leader-election test") >= 1);
        let _ = tasks.drain(Duration::from_secs(5)).await;
        server.stop().await.expect("stopped");
    }
}
