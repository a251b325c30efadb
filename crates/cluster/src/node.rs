//! A node: the kubelet with its container runtime, beside the control plane or alone.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::clock::Clock;
use base::pki::{Pki, ServingNames};
use base::tasks::TaskGroup;
use client::Client;
use kubelet::server::{ClientAuthorities, Serving};
use kubelet::{Begun, Kubelet};

use crate::join::credential::Credential;
use crate::{ClusterError, ServiceNetwork, chain, join, local_path, policies, service_network, serving};

/// How long to wait for a runtime that is not there yet.
const AGAIN: Duration = Duration::from_millis(500);

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub name: String,
    pub data_dir: PathBuf,
    /// Address of the container runtime.
    pub runtime: String,
    /// The kubelet's HTTPS API; port 0 takes a free one.
    pub listen: SocketAddr,
    pub ips: Vec<IpAddr>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub max_pods: u32,
    pub pod_cidr: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub cgroup_root: String,
    pub static_pods: Option<PathBuf>,
    /// How the node keeps itself usable.
    pub upkeep: kubelet::Upkeep,
    /// Certificate and key of the kubelet's API; made if absent.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// Whether the cluster is asked for the certificate of the kubelet's API.
    pub rotate_serving: bool,
    /// Whether the certificate by which the kubelet is known to the cluster is renewed.
    pub rotate_client: bool,
    /// A kubeconfig to get the node's own with.
    pub bootstrap: Option<PathBuf>,
    pub resolv_conf: Option<PathBuf>,
    /// Who vouches for callers of the kubelet's API.
    pub client_ca: Option<PathBuf>,
    /// What the node does for services and for pods of other nodes.
    pub service_network: ServiceNetwork,
    /// Who has to agree before a pod's containers start.
    pub gate: Option<Arc<dyn kubelet::Gate>>,
    pub clock: Clock,
}

impl NodeConfig {
    /// Defaults, with everything under `data_dir`.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            name: kubelet::node::hostname(),
            data_dir: data_dir.into(),
            runtime: "unix:///run/containerd/containerd.sock".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10250)),
            ips: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            max_pods: 110,
            pod_cidr: None,
            labels: BTreeMap::new(),
            cgroup_root: "/kubepods".to_owned(),
            static_pods: None,
            upkeep: kubelet::Upkeep::default(),
            serving: None,
            rotate_serving: false,
            rotate_client: true,
            bootstrap: None,
            resolv_conf: None,
            client_ca: None,
            service_network: ServiceNetwork::default(),
            gate: None,
            clock: Clock::system(),
        }
    }

    /// The user that a node's kubelet is.
    #[must_use]
    pub fn user(&self) -> String {
        format!("system:node:{}", self.name)
    }

    /// A certificate that the cluster signs for this node.
    pub(crate) fn credential(&self, file: &str, names: Option<ServingNames>) -> Credential {
        let (node, clock) = (self.name.clone(), self.clock.clone());
        Credential { file: self.data_dir.join("kubelet/pki").join(file), node, names, clock }
    }

    pub(crate) fn names(&self) -> ServingNames {
        let mut names = ServingNames::default();
        names.dns.insert(self.name.clone());
        names.ips.extend(if self.ips.is_empty() { kubelet::node::node_ips() } else { self.ips.clone() });
        names.ips.insert(Ipv4Addr::LOCALHOST.into());
        names
    }

    fn kubelet(&self, serving: &Serving, authorities: &ClientAuthorities) -> kubelet::Config {
        let directory = self.data_dir.join("kubelet");
        let mut config = kubelet::Config::new(&self.name, &directory);
        config.logs = self.data_dir.join("logs/pods");
        config.runtime.clone_from(&self.runtime);
        config.listen = self.listen;
        config.node_ips.clone_from(&self.ips);
        config.cluster_dns.clone_from(&self.cluster_dns);
        config.cluster_domain.clone_from(&self.cluster_domain);
        config.max_pods = self.max_pods;
        config.pod_cidr.clone_from(&self.pod_cidr);
        config.labels.clone_from(&self.labels);
        config.cgroup_root.clone_from(&self.cgroup_root);
        config.static_pods.clone_from(&self.static_pods);
        config.upkeep = self.upkeep.clone();
        config.gate.clone_from(&self.gate);
        config.serving = Some(serving.clone());
        if let Some(path) = &self.resolv_conf {
            config.resolv_conf.clone_from(path);
        }
        config.client_authorities = authorities.clone();
        config.clock = self.clock.clone();
        config
    }
}

/// Runs a node until `tasks` stops. `authorities` vouch for those who may call the kubelet; `serving` is its
/// certificate. `ready` is told when the node is registered.
pub fn run_node<'a>(
    node: &'a NodeConfig,
    client: Client,
    serving: &'a Serving,
    authorities: &'a ClientAuthorities,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce(Begun) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        loop {
            let config = node.kubelet(serving, authorities);
            match Kubelet::build(config, client.clone(), tasks.clone()).await {
                Ok(kubelet) => {
                    return kubelet.run(ready).await.map_err(ClusterError::Kubelet);
                }
                Err(error @ (kubelet::KubeletError::Connect(_) | kubelet::KubeletError::Runtime(_))) => {
                    tracing::warn!(
                        error = chain(&error),
                        runtime = node.runtime,
                        "waiting for the container runtime"
                    );
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => {}
                        () = tasks.stopping() => return Ok(()),
                    }
                }
                Err(error) => return Err(ClusterError::Kubelet(error)),
            }
        }
    })
}

/// Runs a kubelet alone, against any API server, until `tasks` stops.
pub fn run_kubelet<'a>(
    node: &'a NodeConfig,
    kubeconfig: &'a Path,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce(Begun) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let credential = node.credential("kubelet-client-current.pem", None);
        if let Some(bootstrap) = &node.bootstrap {
            let stopping = tasks.stopping();
            tokio::select! {
                () = stopping => return Ok(()),
                joined = join::bootstrap::kubeconfig(bootstrap, kubeconfig, &credential) => joined?,
            }
        }
        let client = Client::connect(kubeconfig, "ferry-kubelet").map_err(ClusterError::Client)?;
        if node.rotate_client && credential.is_used_by(kubeconfig) {
            credential.keep_fresh(client.clone(), tasks, |_| {});
        }
        let serving = serving::begin(node, &client, tasks)?;
        let authorities = match &node.client_ca {
            Some(path) => serving::followed_authorities(path, tasks)?,
            None => ClientAuthorities::default(),
        };
        let outcome = run_node(node, client, &serving, &authorities, tasks, ready).await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks were cancelled");
        }
        outcome
    })
}

/// A node in the process of its control plane.
pub struct NodeBeside {
    node: NodeConfig,
    clients: NodeClients,
    pki: Arc<Pki>,
}

/// Who a node in this process is to the API server.
pub(crate) struct NodeClients {
    pub kubelet: Client,
    pub administrator: Client,
    pub provisioner: Client,
    pub proxy: Client,
    pub policies: Client,
}

impl NodeBeside {
    pub(crate) fn new(node: NodeConfig, clients: NodeClients, pki: &Arc<Pki>) -> Self {
        Self { node, clients, pki: Arc::clone(pki) }
    }

    /// Runs the node in `tasks`, which stops if the node cannot be started. `ready` is told when the node is registered.
    pub fn start(self, tasks: &TaskGroup, ready: Box<dyn FnOnce(Begun) + Send + 'static>) {
        let Self { mut node, clients, pki } = self;
        let NodeClients { kubelet, administrator, provisioner, proxy, policies } = clients;
        service_network::start(&node.service_network, &node.name, proxy, tasks);
        if node.service_network.policies {
            let (installer, on_failure) = (administrator.clone(), node.service_network.policy_failure);
            let prepared = Box::pin(async move {
                if let Err(error) = policy::access::install(&installer).await {
                    tracing::error!(error = chain(&error), "failed to install RBAC of network policies");
                }
            });
            node.gate = Some(policies::start(&node.name, policies, on_failure, prepared, tasks));
        }
        let volumes = node.data_dir.join("volumes");
        tasks.supervise_scope("local-path-provisioner", move |scope| {
            let (administrator, provisioner) = (administrator.clone(), provisioner.clone());
            let volumes = volumes.clone();
            async move {
                match local_path::install(&administrator).await {
                    Ok(()) => local_path::run(provisioner, volumes, scope).await,
                    Err(error) => tracing::error!(%error, "failed to install the storage class of the node"),
                }
                ControlFlow::Continue(())
            }
        });
        let (group, node, mut ready) = (tasks.clone(), Arc::new(node), Some(ready));
        let registered = Arc::new(AtomicBool::new(false));
        tasks.supervise_scope("kubelet", move |scope| {
            let (node, client, pki, group) =
                (Arc::clone(&node), kubelet.clone(), Arc::clone(&pki), group.clone());
            let (registered, ready) = (Arc::clone(&registered), ready.take());
            async move {
                let run = async {
                    let serving = serving::issued(&node, &pki, &scope)?;
                    let authorities = serving::authorities(&pki.client_authority.certificate_pem)?;
                    let flag = Arc::clone(&registered);
                    let ready = Box::new(move |begun: Begun| {
                        flag.store(true, Ordering::Release);
                        if let Some(ready) = ready {
                            ready(begun);
                        }
                    });
                    run_node(&node, client, &serving, &authorities, &scope, ready).await
                };
                if let Err(error) = run.await {
                    tracing::error!(error = chain(&error), "the node cannot run");
                    // A node that never ran is one that was configured wrongly.
                    if !registered.load(Ordering::Acquire) {
                        group.stop();
                    }
                }
                ControlFlow::Continue(())
            }
        });
    }
}
