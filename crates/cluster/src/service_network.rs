//! A node's part of the cluster's network: the proxy of services, the routes to other nodes' pods, and the addresses of
//! load balancers that it answers for.

use futures_util::future::BoxFuture;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use client::Client;
use cloud::local::{Pool, announce};
use objects::core::v1::Node;
use policy::OnFailure;
use proxy::backend::{self, Mode};
use proxy::driver::Driver;
use proxy::health::{Answer, Health, HealthPort, MetricsPort};
use proxy::metrics::ProxyMetrics;
use proxy::model::Cidr;
use runtime::Informers;

use crate::{ClusterError, StatusPort, chain};

/// User name of the proxy in the process of the control plane.
pub const USER: &str = "system:kube-proxy";
/// Name of the service account in kube-system of the proxy of a joined node, and its user name.
pub const ACCOUNT: &str = "ferry-proxy";
pub const ACCOUNT_USER: &str = "system:serviceaccount:kube-system:ferry-proxy";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What a node does for services and for pods of other nodes.
#[derive(Clone, Debug)]
pub struct ServiceNetwork {
    /// How services are served; not at all if absent.
    pub proxy: Option<ProxyConfig>,
    /// Whether pods of other nodes get routes.
    pub routes: bool,
    /// Whether network policies are enforced.
    pub policies: bool,
    /// Handling of pods whose network policies cannot be enforced.
    pub policy_failure: OnFailure,
    /// Ranges of load balancers' addresses that nodes answer for.
    pub load_balancer_ranges: Vec<String>,
}

impl Default for ServiceNetwork {
    fn default() -> Self {
        Self {
            proxy: Some(ProxyConfig::default()),
            routes: true,
            policies: true,
            policy_failure: OnFailure::default(),
            load_balancer_ranges: Vec::new(),
        }
    }
}

/// How services are served on a node.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Ranges of pod addresses: who comes from elsewhere is masqueraded. Those of the node's own pods if empty.
    pub cluster_cidrs: Vec<String>,
    pub masquerade_all: bool,
    /// The backend; the first that works if absent.
    pub mode: Option<Mode>,
    /// Where `/healthz` and `/livez` are answered.
    pub healthz: Option<SocketAddr>,
    /// Where `/proxyMode` and `/metrics` are.
    pub metrics: Option<SocketAddr>,
    /// Whether a port that another has is an error.
    pub ports_are_needed: bool,
    /// Whether this machine is a node, to be waited for; else it serves as one that has no pods.
    pub is_node: bool,
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
            is_node: true,
        }
    }
}

/// Starts them in `tasks` for the node `name`.
pub(crate) fn start(config: &ServiceNetwork, name: &str, client: Client, tasks: &TaskGroup) {
    let informers = Informers::new(client, tasks);
    if config.routes {
        let (name, informers) = (name.to_owned(), informers.clone());
        tasks.supervise_scope("routes", move |scope| {
            let run = network::routes::run(name.clone(), informers.clone(), scope);
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
        Err(error) => tracing::error!(%error, "no address of a load balancer is answered for on this node"),
    }
    if let Some(proxy) = config.proxy.clone() {
        let name = name.to_owned();
        tasks.supervise_scope("kube-proxy", move |scope| {
            let (proxy, name, informers) = (proxy.clone(), name.clone(), informers.clone());
            async move {
                if let Err(error) = run(&proxy, &name, &informers, &scope, Box::new(|| {})).await {
                    tracing::error!(error = chain(&error), "failed to serve services on this node");
                }
                ControlFlow::Continue(())
            }
        });
    }
}

/// Services on a machine that has a control plane and no node.
pub struct ProxyBeside {
    config: ProxyConfig,
    client: Client,
}

impl ProxyBeside {
    pub(crate) fn new(config: ProxyConfig, client: Client) -> Self {
        Self { config: ProxyConfig { is_node: false, ..config }, client }
    }

    /// Serves them in `tasks`.
    pub fn start(self, tasks: &TaskGroup) {
        let network = ServiceNetwork {
            proxy: Some(self.config),
            routes: false,
            policies: false,
            policy_failure: OnFailure::default(),
            load_balancer_ranges: Vec::new(),
        };
        start(&network, "", self.client, tasks);
    }
}

/// Serves services alone, for any API server, until `tasks` stop. `ready` is called when all of them are served.
pub fn run_proxy<'a>(
    config: &'a ProxyConfig,
    name: &'a str,
    kubeconfig: &'a Path,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce() + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let client = Client::connect(kubeconfig, "ferry-proxy").map_err(ClusterError::Client)?;
        let outcome = run(config, name, &Informers::new(client, tasks), tasks, ready).await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks were cancelled");
        }
        outcome
    })
}

/// Serves services on the node `name` until `tasks` stop. `ready` is called when all of them are served.
async fn run(
    config: &ProxyConfig,
    name: &str,
    informers: &Informers,
    tasks: &TaskGroup,
    ready: Box<dyn FnOnce() + Send + '_>,
) -> Result<(), ClusterError> {
    let stopping = tasks.stopping();
    let node = tokio::select! {
        () = stopping => return Ok(()),
        node = own_node(config, name, informers) => node,
    };
    let backend = backend::open(config.mode, &node).map_err(ClusterError::Proxy)?;
    let clock = Clock::system();
    let metrics = Metrics::new(&clock).map_err(ClusterError::Metrics)?;
    let figures = Arc::new(ProxyMetrics::new(&metrics).map_err(ClusterError::Metrics)?);
    let health = Arc::new(Health::new(&clock));
    let mode = backend.mode().name();
    tracing::info!(mode, node = name, "services are served");
    let port = HealthPort { health: Arc::clone(&health), metrics: Arc::clone(&figures) };
    let figures_port = MetricsPort { mode: Some(mode), metrics };
    for (address, purpose, answer) in [
        (config.healthz, "the proxy's health", Arc::new(port) as Arc<dyn Answer>),
        (config.metrics, "the proxy's metrics", Arc::new(figures_port)),
    ] {
        if let Some(address) = address {
            StatusPort { address, needed: config.ports_are_needed }.open(purpose, answer, tasks).await?;
        }
    }
    Driver::new(node, backend, informers, health, figures).run(tasks.clone(), ready).await;
    Ok(())
}

/// Removes what the proxy's backends left in the kernel.
pub fn clean_up_services() {
    let node = proxy::model::Node::default();
    if let Ok(backend) = proxy::nftables::Nftables::open(node.clone())
        && let Err(error) = backend.remove()
    {
        tracing::debug!(%error, "nothing to remove of nftables");
    }
    if let Err(error) = proxy::ipvs::clean_up() {
        tracing::warn!(error = chain(&error), "services of the kernel's load balancer are not removed");
    }
    if let Err(error) = proxy::link::remove_link() {
        tracing::debug!(%error, "the link of services is not removed");
    }
    if let Ok(backend) = proxy::iptables::Iptables::open(node)
        && let Err(error) = backend::Backend::remove(&backend)
    {
        tracing::warn!(error = chain(&error), "rules of iptables are not removed");
    }
}

/// The node as the planner wants it; waits until it has addresses for its pods, where nobody said which.
async fn own_node(config: &ProxyConfig, name: &str, informers: &Informers) -> proxy::model::Node {
    if !config.is_node {
        return proxy::model::Node {
            name: name.to_owned(),
            zone: None,
            pod_cidrs: config.cluster_cidrs.iter().filter_map(|text| Cidr::parse(text)).collect(),
            masquerade_all: config.masquerade_all,
        };
    }
    let nodes = informers.of::<Node>();
    let changed = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&changed);
    nodes.on_event(move |_| told.notify_one());
    nodes.synced().await;
    loop {
        let node = nodes.get("", name);
        let ranges = match &node {
            _ if !config.cluster_cidrs.is_empty() => config.cluster_cidrs.clone(),
            Some(node) => {
                let spec = node.spec.clone().unwrap_or_default();
                spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect())
            }
            None => Vec::new(),
        };
        if let Some(node) = node.filter(|_| !ranges.is_empty()) {
            return proxy::model::Node {
                name: name.to_owned(),
                zone: node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).cloned(),
                pod_cidrs: ranges.iter().filter_map(|text| Cidr::parse(text)).collect(),
                masquerade_all: config.masquerade_all,
            };
        }
        changed.notified().await;
    }
}
