//! A node's part of the cluster's network: the proxy of services, and the routes to other nodes' pods.

use std::path::Path;

use base::tasks::TaskGroup;
use client::Client;
use k8s_openapi::api::core::v1::Node;
use proxy::driver::Driver;
use proxy::model::Cidr;
use proxy::nftables::Nftables;
use runtime::{Cache, Informers};

use crate::{ClusterError, chain};

/// Who the proxy is when it has a certificate of its own.
pub const USER: &str = "system:kube-proxy";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What a node does for services and for pods of other nodes.
#[derive(Clone, Debug)]
pub struct ServiceNetwork {
    /// How services are served; not at all if absent.
    pub proxy: Option<ProxyConfig>,
    /// Whether pods of other nodes get routes.
    pub routes: bool,
}

impl Default for ServiceNetwork {
    fn default() -> Self {
        Self { proxy: Some(ProxyConfig::default()), routes: true }
    }
}

/// How services are served on a node.
#[derive(Clone, Debug, Default)]
pub struct ProxyConfig {
    /// Ranges of pod addresses: who comes from elsewhere is masqueraded. Those of the node's own pods if empty.
    pub cluster_cidrs: Vec<String>,
    pub masquerade_all: bool,
}

/// Starts both in `tasks` for the node `name`.
pub(crate) fn start(config: &ServiceNetwork, name: &str, client: Client, tasks: &TaskGroup) {
    let informers = Informers::new(client, tasks);
    if config.routes {
        tasks.spawn(network::routes::run(name.to_owned(), informers.clone(), tasks.clone()));
    }
    if let Some(proxy) = config.proxy.clone() {
        let (name, group) = (name.to_owned(), tasks.clone());
        tasks.spawn(async move {
            if let Err(error) = run(&proxy, &name, &informers, &group, || {}).await {
                tracing::error!(error = chain(&error), "services are not served on this node");
            }
        });
    }
}

/// Serves services alone, for any API server, until `tasks` stop. `ready` is called when all of them are served.
pub async fn run_proxy(
    config: &ProxyConfig,
    name: &str,
    kubeconfig: &Path,
    tasks: &TaskGroup,
    ready: impl FnOnce() + Send,
) -> Result<(), ClusterError> {
    let client = Client::connect(kubeconfig, "ferry-proxy").map_err(ClusterError::Client)?;
    let outcome = run(config, name, &Informers::new(client, tasks), tasks, ready).await;
    if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
        tracing::warn!(error = chain(&error), "tasks were cancelled");
    }
    outcome
}

/// Serves services on the node `name` until `tasks` stop. `ready` is called when all of them are served.
async fn run(
    config: &ProxyConfig,
    name: &str,
    informers: &Informers,
    tasks: &TaskGroup,
    ready: impl FnOnce() + Send,
) -> Result<(), ClusterError> {
    let nodes = informers.of::<Node>();
    let stopping = tasks.stopping();
    let node = tokio::select! {
        () = stopping => return Ok(()),
        node = own_node(config, name, &nodes) => node,
    };
    let backend = Nftables::open(node.clone()).map_err(ClusterError::Proxy)?;
    Driver::new(node, backend, informers).run(tasks.clone(), ready).await;
    Ok(())
}

/// The node as the planner wants it; waits until it has addresses for its pods, where nobody said which.
async fn own_node(config: &ProxyConfig, name: &str, nodes: &Cache<Node>) -> proxy::model::Node {
    let changed = std::sync::Arc::new(tokio::sync::Notify::new());
    let told = std::sync::Arc::clone(&changed);
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
