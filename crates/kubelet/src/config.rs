//! Kubelet configuration, fixed at startup.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use base::clock::Clock;
use base::machine_network::Family;

use crate::housekeeping_config::HousekeepingConfig;
use crate::node::RegistrationConfig;
use crate::server::{ClientAuthorities, NodeLogSettings, PageSettings, Serving};

/// Kubelet configuration.
#[derive(Debug)]
pub struct Config {
    pub node_name: String,
    /// Root directory for pod files.
    pub directory: PathBuf,
    /// Directory of container logs.
    pub logs: PathBuf,
    /// Address of the container runtime, such as `unix:///run/containerd/containerd.sock`.
    pub runtime: String,
    /// Address of the kubelet's HTTPS API; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Node addresses, the first of each family; those of the machine at any time if empty.
    pub node_ips: Vec<IpAddr>,
    /// Families of the cluster's addresses, which addresses of the machine are chosen by.
    pub families: Vec<Family>,
    /// Host name that the node reports; that of the machine at any time if absent.
    pub hostname: Option<String>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    pub max_pods: u32,
    /// Pod CIDRs, if the control plane does not allocate them.
    pub pod_cidr: Option<String>,
    /// Directory of static pod manifests.
    pub static_pods: Option<PathBuf>,
    pub labels: BTreeMap<String, String>,
    pub registration: RegistrationConfig,
    /// Parent cgroup of all pods.
    pub cgroup_root: String,
    /// Serving certificate of the HTTPS API.
    pub serving: Option<Serving>,
    /// State of certificates that others renew.
    pub certificates: CertificateStatus,
    /// CAs of client certificates.
    pub client_authorities: ClientAuthorities,
    /// Housekeeping settings.
    pub housekeeping: HousekeepingConfig,
    /// Pages about the process.
    pub pages: PageSettings,
    /// Logs of the machine.
    pub node_logs: NodeLogSettings,
    /// Gate that must admit a pod before its containers start.
    pub gate: Option<Arc<dyn Gate>>,
    /// Observer of clients.
    pub peer: Option<PeerObserver>,
    pub tracer: base::trace::Tracer,
    /// Exporter of the kubelet alone, for its metrics; absent if the process has one.
    pub exporter: Option<base::trace::Exporter>,
    pub clock: Clock,
}

type Observe = dyn Fn(&str, IpAddr) + Send + Sync;

/// Called with the user name and the address of every client that presented a certificate.
#[derive(Clone)]
pub struct PeerObserver(Arc<Observe>);

impl PeerObserver {
    pub fn new(observe: impl Fn(&str, IpAddr) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn observe(&self, user: &str, ip: IpAddr) {
        (self.0)(user, ip);
    }
}

impl std::fmt::Debug for PeerObserver {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("PeerObserver")
    }
}

/// State of the kubelet's certificates, for metrics. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CertificateStatus(Arc<CertificateCounts>);

#[derive(Debug, Default)]
struct CertificateCounts {
    /// Seconds since the epoch; 0 if unknown.
    client_expires: AtomicI64,
    client_errors: AtomicU64,
    server_errors: AtomicU64,
}

impl CertificateStatus {
    /// Sets the end of the client certificate's validity, in seconds since the epoch.
    pub fn set_client_expires(&self, at: i64) {
        self.0.client_expires.store(at, Ordering::Relaxed);
    }

    /// Records a failure to renew the client certificate.
    pub fn client_failed(&self) {
        self.0.client_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a failure to renew the serving certificate.
    pub fn server_failed(&self) {
        self.0.server_errors.fetch_add(1, Ordering::Relaxed);
    }

    #[must_use]
    pub fn client_expires(&self) -> Option<i64> {
        Some(self.0.client_expires.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Failures to renew the client and the serving certificate.
    #[must_use]
    pub fn renew_errors(&self) -> (u64, u64) {
        (self.0.client_errors.load(Ordering::Relaxed), self.0.server_errors.load(Ordering::Relaxed))
    }
}

/// Gate between sandbox network setup and the start of the first container.
pub trait Gate: std::fmt::Debug + Send + Sync {
    /// Returns when the pod's containers may start.
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
            families: Vec::new(),
            hostname: None,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            max_pods: 110,
            pod_cidr: None,
            static_pods: None,
            labels: BTreeMap::new(),
            registration: RegistrationConfig::default(),
            cgroup_root: "/kubepods".to_owned(),
            serving: None,
            certificates: CertificateStatus::default(),
            client_authorities: ClientAuthorities::default(),
            housekeeping: HousekeepingConfig::default(),
            pages: PageSettings::default(),
            node_logs: NodeLogSettings::default(),
            gate: None,
            peer: None,
            tracer: base::trace::Tracer::off(),
            exporter: None,
            clock: Clock::system(),
        }
    }
}
