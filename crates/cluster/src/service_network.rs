//! Network of a node: the service proxy, the routes to other nodes' pods, and announced load balancer addresses.

use futures_util::future::BoxFuture;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use base::version::user_agent;
use base::zpages::{ComponentPages, PageSettings};
use client::Client;
use cloud::local::{Pool, announce};
use objects::core::v1::Node;
use policy::OnFailure;
use proxy::backend::{self, Mode};
use proxy::driver::Driver;
use proxy::health::{Health, HealthPort, MetricsPort};
use proxy::metrics::ProxyMetrics;
use runtime::Informers;
use sys::instance::Instance;
use tokio::time::Instant;

use crate::{ClusterError, StatusPort, chain, component_configs, machine_network};

/// User name of the proxy in the process of the control plane.
pub const USER: &str = "system:kube-proxy";
/// Name of the service account in kube-system of the proxy of a joined node, and its user name.
pub const ACCOUNT: &str = "ferry-proxy";
pub const ACCOUNT_USER: &str = "system:serviceaccount:kube-system:ferry-proxy";
/// Time after which a proxy that cannot plan yet logs the reason.
const WARN_AFTER: Duration = Duration::from_secs(5);
/// Time limit for a node's pod CIDR, after which the proxy works without it.
const RANGE_WAIT_LIMIT: Duration = Duration::from_secs(20);
const ZONE: &str = "topology.kubernetes.io/zone";

/// Network configuration of a node.
#[derive(Clone, Debug)]
pub struct ServiceNetwork {
    /// Instance whose rules, links and routes these are.
    pub instance: Instance,
    /// Proxy configuration; no proxy if absent.
    pub proxy: Option<ProxyConfig>,
    /// Routes to pods of other nodes.
    pub routes: bool,
    /// Enforcement of network policies.
    pub policies: bool,
    /// Handling of pods whose network policies cannot be enforced.
    pub policy_failure: OnFailure,
    /// Load balancer ranges that nodes announce.
    pub load_balancer_ranges: Vec<String>,
}

impl Default for ServiceNetwork {
    fn default() -> Self {
        Self {
            instance: Instance::MAIN,
            proxy: Some(ProxyConfig::default()),
            routes: true,
            policies: true,
            policy_failure: OnFailure::default(),
            load_balancer_ranges: Vec::new(),
        }
    }
}

/// Proxy configuration of a node.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Pod CIDRs: traffic from other sources is masqueraded. Those of the node's own pods if empty.
    pub cluster_cidrs: Vec<String>,
    pub masquerade_all: bool,
    /// Proxy mode; the first available one if absent.
    pub mode: Option<Mode>,
    /// Address of `/healthz` and `/livez`.
    pub healthz: Option<SocketAddr>,
    /// Address of `/proxyMode` and `/metrics`.
    pub metrics: Option<SocketAddr>,
    /// If true, a port in use is an error.
    pub ports_are_needed: bool,
    /// Pages about the process at the port of metrics, which anyone who reaches the port can read: no profiles by
    /// default.
    pub pages: PageSettings,
    /// True if this machine is a node whose object must be awaited; otherwise it has no pods.
    pub is_node: bool,
    /// Instance whose rules these are.
    pub instance: Instance,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            cluster_cidrs: Vec::new(),
            masquerade_all: false,
            mode: None,
            healthz: Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10256))),
            metrics: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10249))),
            ports_are_needed: false,
            pages: PageSettings { profiling: false },
            is_node: true,
            instance: Instance::MAIN,
        }
    }
}

/// Starts the configured parts in `tasks` for the node `name`.
pub(crate) fn start(config: &ServiceNetwork, name: &str, client: Client, tasks: &TaskGroup) {
    let informers = Informers::new(client, tasks);
    if config.routes {
        let (name, instance, informers) = (name.to_owned(), config.instance, informers.clone());
        tasks.supervise_scope("routes", move |scope| {
            let run = network::routes::run(name.clone(), instance, informers.clone(), scope);
            async move {
                run.await;
                ControlFlow::Continue(())
            }
        });
    }
    match Pool::parse(&config.load_balancer_ranges) {
        Ok(_) if config.load_balancer_ranges.is_empty() => {}
        Ok(pool) => {
            let (name, informers) = (name.to_owned(), informers.clone());
            tasks.supervise_scope("load-balancer-announcements", move |scope| {
                let run = announce::run(name.clone(), pool.clone(), informers.clone(), scope);
                async move {
                    run.await;
                    ControlFlow::Continue(())
                }
            });
        }
        Err(error) => tracing::error!(%error, "failed to announce load balancer addresses on this node"),
    }
    if let Some(mut proxy) = config.proxy.clone() {
        proxy.instance = config.instance;
        let name = name.to_owned();
        tasks.supervise_scope("kube-proxy", move |scope| {
            let (proxy, name, informers) = (proxy.clone(), name.clone(), informers.clone());
            async move {
                if let Err(error) = run(&proxy, &name, &informers, &scope, Box::new(|| {})).await {
                    tracing::error!(error = chain(&error), "failed to run the service proxy");
                }
                ControlFlow::Continue(())
            }
        });
    }
}

/// Service proxy on a machine with a control plane and no node.
pub struct LocalProxy {
    config: ProxyConfig,
    client: Client,
}

impl LocalProxy {
    pub(crate) fn new(config: ProxyConfig, client: Client) -> Self {
        Self { config: ProxyConfig { is_node: false, ..config }, client }
    }

    /// Starts the proxy in `tasks`.
    pub fn start(self, tasks: &TaskGroup) {
        let network = ServiceNetwork {
            instance: self.config.instance,
            proxy: Some(self.config),
            routes: false,
            policies: false,
            policy_failure: OnFailure::default(),
            load_balancer_ranges: Vec::new(),
        };
        start(&network, "", self.client, tasks);
    }
}

/// Runs the service proxy alone, against any API server, until `tasks` stop. `ready` is called after the first sync.
pub fn run_proxy<'a>(
    config: &'a ProxyConfig,
    name: &'a str,
    kubeconfig: &'a Path,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce() + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        machine_network::follow(tasks);
        let client = Client::connect(kubeconfig, &user_agent("kube-proxy")).map_err(ClusterError::Client)?;
        let outcome = run(config, name, &Informers::new(client, tasks), tasks, ready).await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks did not stop within the grace period, cancelled");
        }
        outcome
    })
}

/// Runs the service proxy on the node `name` until `tasks` stop. `ready` is called after the first sync.
async fn run(
    config: &ProxyConfig,
    name: &str,
    informers: &Informers,
    tasks: &TaskGroup,
    ready: Box<dyn FnOnce() + Send + '_>,
) -> Result<(), ClusterError> {
    let clock = Clock::system();
    let metrics = Metrics::new(&clock).map_err(ClusterError::Metrics)?;
    base::version::register_build_info(&metrics).map_err(ClusterError::Metrics)?;
    client::register_metrics(&metrics).map_err(ClusterError::Metrics)?;
    let figures = Arc::new(ProxyMetrics::new(&metrics).map_err(ClusterError::Metrics)?);
    let health = Arc::new(Health::new(&clock));
    // Open while the node is not known, so that the reason can be read there.
    let port = HealthPort { health: Arc::clone(&health), metrics: Arc::clone(&figures) };
    if let Some(address) = config.healthz {
        let port = Arc::new(port);
        StatusPort { address, needed: config.ports_are_needed }.open("proxy health", port, tasks).await?;
    }
    let node = tasks.until_stopped(own_node(config, name, informers, &health)).await;
    let Some(node) = node else { return Ok(()) };
    health.set_waiting(None);
    let backend = backend::open(config.mode, &node).map_err(ClusterError::Proxy)?;
    let mode = backend.mode().name();
    tracing::info!(mode, node = name, "started the service proxy");
    let configz = Some((component_configs::PROXY_GROUP, component_configs::of_proxy(config, name, mode)));
    let pages = ComponentPages::with_configz("kube-proxy", health.checks(), config.pages, configz, &clock)
        .map_err(ClusterError::Metrics)?;
    let figures_port = MetricsPort { mode: Some(mode), metrics, pages: Some(pages) };
    if let Some(address) = config.metrics {
        let port = Arc::new(figures_port);
        StatusPort { address, needed: config.ports_are_needed }.open("proxy metrics", port, tasks).await?;
    }
    Driver::new(node, backend, informers, health, figures).run(tasks.clone(), ready).await;
    Ok(())
}

/// Removes the rules of all proxy modes of an instance from the kernel.
pub fn clean_up_services(instance: Instance) {
    let node = proxy::model::Node { instance, ..proxy::model::Node::default() };
    if let Ok(backend) = proxy::nftables::Nftables::open(node.clone())
        && let Err(error) = backend.remove()
    {
        tracing::debug!(%error, "no nftables rules to remove");
    }
    if let Err(error) = proxy::ipvs::clean_up(instance) {
        tracing::warn!(error = chain(&error), "failed to remove IPVS virtual servers");
    }
    if let Err(error) = proxy::link::remove_link(instance) {
        tracing::debug!(%error, "failed to remove the IPVS link");
    }
    if let Ok(backend) = proxy::iptables::Iptables::open(node)
        && let Err(error) = backend::Backend::remove(&backend)
    {
        tracing::warn!(error = chain(&error), "failed to remove iptables rules");
    }
}

/// Node in the planner's form; waits for its object, and for a while for its pod CIDRs if none are configured.
async fn own_node(
    config: &ProxyConfig,
    name: &str,
    informers: &Informers,
    health: &Health,
) -> proxy::model::Node {
    let of = |zone: Option<String>, ranges: &[String]| proxy::model::Node {
        name: name.to_owned(),
        zone,
        pod_cidrs: ranges.iter().filter_map(|text| text.trim().parse().ok()).collect(),
        masquerade_all: config.masquerade_all,
        instance: config.instance,
    };
    if !config.is_node {
        return of(None, &config.cluster_cidrs);
    }
    let nodes = informers.of::<Node>();
    let changed = Arc::new(tokio::sync::Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_event(move |_| notify.notify_one());
    let (begun, mut warned) = (Instant::now(), false);
    loop {
        let node = nodes.get("", name);
        let spec = node.as_ref().and_then(|node| node.spec.clone()).unwrap_or_default();
        let own = || spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
        let ranges = if config.cluster_cidrs.is_empty() { own() } else { config.cluster_cidrs.clone() };
        let reason = match node {
            Some(node) if !ranges.is_empty() || begun.elapsed() >= RANGE_WAIT_LIMIT => {
                if ranges.is_empty() {
                    tracing::warn!(
                        node = name,
                        "the node has no pod CIDR, so traffic to services is not masqueraded by its source; set --cluster-cidr"
                    );
                }
                let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).cloned();
                return of(zone, &ranges);
            }
            Some(_) => format!("node {name} has no pod CIDR yet"),
            None if nodes.is_synced() => format!("node {name} does not exist yet"),
            None => "nodes have not been listed yet".to_owned(),
        };
        if begun.elapsed() >= WARN_AFTER && !warned {
            tracing::warn!(reason, "the service proxy is waiting");
            warned = true;
        }
        health.set_waiting(Some(reason));
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(WARN_AFTER) => {}
        }
    }
}
