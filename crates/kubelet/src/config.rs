//! What a kubelet is told when it is started.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use base::clock::Clock;

use crate::server::{ClientAuthorities, Serving};
use crate::upkeep::Upkeep;

/// A kubelet's configuration.
#[derive(Debug)]
pub struct Config {
    pub node_name: String,
    /// Where pods' files are.
    pub directory: PathBuf,
    /// Where containers' logs are.
    pub logs: PathBuf,
    /// Address of the container runtime, such as `unix:///run/containerd/containerd.sock`.
    pub runtime: String,
    /// Its own HTTPS API; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The node's addresses, the first of each family; found out if empty.
    pub node_ips: Vec<IpAddr>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    pub max_pods: u32,
    /// Addresses for pods, if the control plane does not hand them out.
    pub pod_cidr: Option<String>,
    /// Directory of static pods.
    pub static_pods: Option<PathBuf>,
    pub labels: BTreeMap<String, String>,
    /// The cgroup under which all pods are.
    pub cgroup_root: String,
    /// Certificate of its HTTPS API.
    pub serving: Option<Serving>,
    /// Who vouches for the certificates of those who call it.
    pub client_authorities: ClientAuthorities,
    /// How the node keeps itself usable.
    pub upkeep: Upkeep,
    /// Who has to agree before a pod's containers start.
    pub gate: Option<Arc<dyn Gate>>,
    pub clock: Clock,
}

/// What a pod passes when it has a network and before anything runs in it.
pub trait Gate: std::fmt::Debug + Send + Sync {
    /// Returns when the pod may go on.
    fn pass<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        addresses: Vec<IpAddr>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

impl Config {
    /// Defaults, with everything under `directory`.
    #[must_use]
    pub fn new(node_name: &str, directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self {
            node_name: node_name.to_owned(),
            logs: directory.join("logs"),
            directory,
            runtime: "unix:///run/containerd/containerd.sock".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10250)),
            node_ips: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            max_pods: 110,
            pod_cidr: None,
            static_pods: None,
            labels: BTreeMap::new(),
            cgroup_root: "/kubepods".to_owned(),
            serving: None,
            client_authorities: ClientAuthorities::default(),
            upkeep: Upkeep::default(),
            gate: None,
            clock: Clock::system(),
        }
    }
}
