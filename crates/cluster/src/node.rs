//! A node: the kubelet with its container runtime, in the process of the control plane or alone.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::clock::Clock;
use base::machine_network::Family;
use base::pki::{Pki, ServingNames};
use base::tasks::TaskGroup;
use base::version::user_agent;
use client::Client;
use kubelet::server::{ClientAuthorities, Serving};
use kubelet::{Kubelet, NodeStarted};

use crate::join::credential::{Credential, Names};
use crate::status_port::{MachinePort, StatusPort};
use crate::{
    ClusterError, ServiceNetwork, Traces, chain, join, local_path, machine_network, policies,
    service_network, serving,
};

/// Retry delay while the container runtime is unavailable.
const RUNTIME_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Node configuration.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub name: String,
    pub data_dir: PathBuf,
    /// Endpoint of the container runtime.
    pub runtime: String,
    /// Listen address of the kubelet's HTTPS API; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Addresses of the node; those of the machine at any time if empty.
    pub ips: Vec<IpAddr>,
    /// Families of the cluster's addresses, which addresses of the machine are chosen by.
    pub families: Vec<Family>,
    /// Host name that the node reports; that of the machine at any time if absent.
    pub hostname: Option<String>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub max_pods: u32,
    pub pod_cidr: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub registration: kubelet::node::RegistrationConfig,
    pub cgroup_root: String,
    pub static_pods: Option<PathBuf>,
    /// Housekeeping configuration.
    pub housekeeping: kubelet::HousekeepingConfig,
    /// Serving certificate and key of the kubelet; generated if absent.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// If true, the serving certificate of the kubelet is requested from the cluster.
    pub rotate_serving: bool,
    /// State of the kubelet's certificates, for its metrics.
    pub certificates: kubelet::CertificateStatus,
    /// Pages about the process at the kubelet's port.
    pub pages: kubelet::server::PageSettings,
    /// Logs of the machine that the kubelet serves.
    pub node_logs: kubelet::server::NodeLogSettings,
    /// If true, the client certificate of the kubelet is renewed.
    pub rotate_client: bool,
    /// Bootstrap kubeconfig, used to get the node's own.
    pub bootstrap: Option<PathBuf>,
    pub resolv_conf: Option<PathBuf>,
    /// Client certificate authorities of the kubelet's API.
    pub client_ca: Option<PathBuf>,
    /// Service proxy and routes of the node.
    pub service_network: ServiceNetwork,
    /// Address of the machine's metrics, with the names of node-exporter; they are not served if absent.
    pub machine_metrics: Option<SocketAddr>,
    /// Trace settings of the kubelet, if they are not those of the process.
    pub tracing: Option<base::trace::TracingConfig>,
    /// Traces of the process.
    pub traces: Traces,
    /// Gates that must open before a pod's containers start.
    pub gate: Option<Arc<dyn kubelet::Gate>>,
    /// Observer of the kubelet's clients.
    pub peer: Option<kubelet::PeerObserver>,
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
            families: Vec::new(),
            hostname: None,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            max_pods: 110,
            pod_cidr: None,
            labels: BTreeMap::new(),
            registration: kubelet::node::RegistrationConfig::default(),
            cgroup_root: "/kubepods".to_owned(),
            static_pods: None,
            housekeeping: kubelet::HousekeepingConfig::default(),
            serving: None,
            rotate_serving: false,
            rotate_client: true,
            bootstrap: None,
            resolv_conf: None,
            client_ca: None,
            service_network: ServiceNetwork::default(),
            machine_metrics: None,
            certificates: kubelet::CertificateStatus::default(),
            tracing: None,
            traces: Traces::default(),
            pages: kubelet::server::PageSettings::default(),
            node_logs: kubelet::server::NodeLogSettings::default(),
            gate: None,
            peer: None,
            clock: Clock::system(),
        }
    }

    /// User name of a node's kubelet.
    #[must_use]
    pub fn user(&self) -> String {
        format!("system:node:{}", self.name)
    }

    /// Certificate for this node, signed by the cluster.
    pub(crate) fn credential(&self, file: &str, names: Option<Names>) -> Credential {
        let (node, clock) = (self.name.clone(), self.clock.clone());
        Credential { file: self.data_dir.join("kubelet/pki").join(file), node, names, clock }
    }

    pub(crate) fn names(&self) -> ServingNames {
        let mut names = ServingNames::default();
        names.dns.insert(self.name.clone());
        names.dns.extend(self.hostname.clone().or_else(base::addresses::hostname));
        names.ips.extend(if self.ips.is_empty() { self.machine_ips() } else { self.ips.clone() });
        names.ips.insert(Ipv4Addr::LOCALHOST.into());
        names
    }

    /// Addresses of the machine that the node reports.
    pub(crate) fn machine_ips(&self) -> Vec<IpAddr> {
        let found = base::machine_network::current().map(|network| network.node_ips(&self.families));
        found.filter(|ips| !ips.is_empty()).unwrap_or_else(kubelet::node::node_ips)
    }

    fn kubelet(&self, serving: &Serving, authorities: &ClientAuthorities) -> kubelet::Config {
        let directory = self.data_dir.join("kubelet");
        let mut config = kubelet::Config::new(&self.name, &directory);
        config.logs = self.data_dir.join("logs/pods");
        config.runtime.clone_from(&self.runtime);
        config.listen = self.listen;
        config.node_ips.clone_from(&self.ips);
        config.families.clone_from(&self.families);
        config.hostname.clone_from(&self.hostname);
        config.cluster_dns.clone_from(&self.cluster_dns);
        config.cluster_domain.clone_from(&self.cluster_domain);
        config.max_pods = self.max_pods;
        config.pod_cidr.clone_from(&self.pod_cidr);
        config.labels.clone_from(&self.labels);
        config.registration.clone_from(&self.registration);
        config.cgroup_root.clone_from(&self.cgroup_root);
        config.static_pods.clone_from(&self.static_pods);
        config.housekeeping = self.housekeeping.clone();
        config.gate.clone_from(&self.gate);
        config.peer.clone_from(&self.peer);
        config.serving = Some(serving.clone());
        config.certificates = self.certificates.clone();
        config.pages = self.pages;
        config.node_logs = self.node_logs.clone();
        if let Some(path) = &self.resolv_conf {
            config.resolv_conf.clone_from(path);
        }
        config.client_authorities = authorities.clone();
        config.clock = self.clock.clone();
        config
    }
}

/// Runs a node until `tasks` stops. `authorities` verify clients of the kubelet; `serving` is its certificate.
/// `ready` is called when the node is registered.
pub fn run_node<'a>(
    node: &'a NodeConfig,
    client: Client,
    serving: &'a Serving,
    authorities: &'a ClientAuthorities,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce(NodeStarted) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        if let Some(address) = node.machine_metrics {
            let port = StatusPort { address, needed: true };
            port.open("metrics of the machine", Arc::new(MachinePort::default()), tasks).await?;
        }
        let traces = node.traces.of_component(node.tracing.as_ref(), &node.clock, tasks)?;
        loop {
            let mut config = node.kubelet(serving, authorities);
            config.tracer = traces.tracer("kubelet", &node.name);
            config.exporter = traces.exporter_beside(&node.traces);
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
                    if tasks.until_stopped(tokio::time::sleep(RUNTIME_RETRY_DELAY)).await.is_none() {
                        return Ok(());
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
    ready: Box<dyn FnOnce(NodeStarted) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        machine_network::follow(tasks);
        let credential = node.credential("kubelet-client-current.pem", None);
        if let Some(bootstrap) = &node.bootstrap {
            let joined = join::bootstrap::kubeconfig(bootstrap, kubeconfig, &credential);
            if tasks.until_stopped(joined).await.transpose()?.is_none() {
                return Ok(());
            }
        }
        let client = Client::connect(kubeconfig, &user_agent("kubelet")).map_err(ClusterError::Client)?;
        if node.rotate_client && credential.is_used_by(kubeconfig) {
            credential.keep_client_fresh(client.clone(), tasks, node.certificates.clone());
        }
        let serving = serving::begin(node, &client, tasks)?;
        let authorities = match &node.client_ca {
            Some(path) => serving::followed_authorities(path, tasks)?,
            None => ClientAuthorities::default(),
        };
        let outcome = run_node(node, client, &serving, &authorities, tasks, ready).await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks did not stop within the grace period, cancelled");
        }
        outcome
    })
}

/// A node in the process of its control plane.
pub struct LocalNode {
    node: NodeConfig,
    clients: NodeClients,
    pki: Arc<Pki>,
}

/// Identity of a node in this process.
pub(crate) struct NodeClients {
    pub kubelet: Client,
    pub administrator: Client,
    pub provisioner: Client,
    pub proxy: Client,
    pub policies: Client,
}

impl LocalNode {
    pub(crate) fn new(node: NodeConfig, clients: NodeClients, pki: &Arc<Pki>) -> Self {
        Self { node, clients, pki: Arc::clone(pki) }
    }

    /// Runs the node in `tasks`. `ready` is called when the node is registered; if it cannot be started, `failed` is
    /// called with the error and `tasks` stops.
    pub fn start(
        self,
        tasks: &TaskGroup,
        ready: Box<dyn FnOnce(NodeStarted) + Send + 'static>,
        failed: Box<dyn FnOnce(ClusterError) + Send + 'static>,
    ) {
        let Self { mut node, clients, pki } = self;
        let NodeClients { kubelet, administrator, provisioner, proxy, policies } = clients;
        service_network::start(&node.service_network, &node.name, proxy, tasks);
        if node.service_network.policies {
            let (installer, on_failure) = (administrator.clone(), node.service_network.policy_failure);
            let prepared = Box::pin(async move {
                if let Err(error) = policy::access::install(&installer).await {
                    tracing::error!(
                        error = chain(&error),
                        "failed to install the RBAC objects of network policies"
                    );
                }
            });
            node.gate = Some(policies::start(
                &node.name,
                node.service_network.instance,
                policies,
                on_failure,
                prepared,
                tasks,
            ));
        }
        let (volumes, clock) = (node.data_dir.join("volumes"), node.clock.clone());
        tasks.supervise_scope("local-path-provisioner", move |scope| {
            let (administrator, provisioner) = (administrator.clone(), provisioner.clone());
            let (volumes, clock) = (volumes.clone(), clock.clone());
            async move {
                if let Err(error) = local_path::install(&administrator).await {
                    tracing::error!(%error, "failed to install the storage class of the node");
                } else if let Err(error) = local_path::run(provisioner, volumes, clock, &scope).await {
                    tracing::error!(%error, "failed to provision volumes of the node");
                }
                ControlFlow::Continue(())
            }
        });
        let (group, node, mut ready) = (tasks.clone(), Arc::new(node), Some(ready));
        let mut failed = Some(failed);
        let registered = Arc::new(AtomicBool::new(false));
        tasks.supervise_scope("kubelet", move |scope| {
            let (node, client, pki, group) =
                (Arc::clone(&node), kubelet.clone(), Arc::clone(&pki), group.clone());
            let (registered, ready, failed) = (Arc::clone(&registered), ready.take(), failed.take());
            async move {
                let run = async {
                    let serving = serving::issued(&node, &pki, &scope)?;
                    let authorities = serving::authorities(&pki.client_authority.certificate_pem)?;
                    let flag = Arc::clone(&registered);
                    let ready = Box::new(move |begun: NodeStarted| {
                        flag.store(true, Ordering::Release);
                        if let Some(ready) = ready {
                            ready(begun);
                        }
                    });
                    run_node(&node, client, &serving, &authorities, &scope, ready).await
                };
                if let Err(error) = run.await {
                    match failed.filter(|_| !registered.load(Ordering::Acquire)) {
                        // A node that never ran is misconfigured.
                        Some(failed) => {
                            failed(error);
                            group.stop();
                        }
                        None => tracing::error!(error = chain(&error), "failed to run the node"),
                    }
                }
                ControlFlow::Continue(())
            }
        });
    }
}
