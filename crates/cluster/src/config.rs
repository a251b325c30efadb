//! What a cluster is made of, as asked for on the command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use apiserver::serve::{ServerConfig, TlsOptions};
use base::clock::Clock;
use base::egress::Proxies;

use crate::Components;

/// A control plane's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    /// The API's address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The address other machines and pods reach the API at; found out if absent.
    pub advertise: Option<IpAddr>,
    pub store: StoreConfig,
    /// Size limit of the embedded store; beyond it, writes other than deletes are refused, as with etcd's quota.
    pub store_quota_bytes: u64,
    /// Time a control plane whose store has failed goes on serving reads, neither ready nor live, before it ends.
    pub store_failure_grace: Duration,
    pub files: CertificateFiles,
    /// The first address of the service range: the API server's own, as in-cluster clients see it.
    pub service_ip: IpAddr,
    pub cluster_domain: String,
    pub serving: ServerConfig,
    /// Time for which requests are served, with a failing `/readyz`, after the signal to stop: load balancers notice it
    /// before connections are refused.
    pub shutdown_delay: Duration,
    pub encryption: EncryptionConfig,
    /// Proxies to networks that are not reached directly; they count for the whole process.
    pub egress: Option<Proxies>,
    pub api: apiserver::Config,
    pub clock: Clock,
    /// How often certificates are looked at for renewal and for changed files.
    pub certificate_check: Duration,
    /// What runs besides the API server; by default nothing.
    pub components: Components,
}

impl Config {
    /// Defaults, with everything under `data_dir`.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let data_dir = data_dir.into();
        let mut api = apiserver::Config::default();
        api.audit.trail = Some(audit_trail(&data_dir));
        Self {
            data_dir,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 6443)),
            advertise: None,
            store: StoreConfig::Embedded,
            store_quota_bytes: store::embedded::DEFAULT_QUOTA_BYTES,
            store_failure_grace: Duration::from_secs(30),
            files: CertificateFiles::default(),
            service_ip: Ipv4Addr::new(10, 0, 0, 1).into(),
            cluster_domain: "cluster.local".to_owned(),
            serving: ServerConfig::default(),
            shutdown_delay: Duration::ZERO,
            encryption: EncryptionConfig::default(),
            egress: None,
            api,
            clock: Clock::system(),
            certificate_check: Duration::from_secs(60),
            components: Components::default(),
        }
    }

    /// Where the administrator's kubeconfig is kept.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("kubeconfig")
    }

    /// Which resources are encrypted in the store, and how.
    #[must_use]
    pub fn encryption_file(&self) -> PathBuf {
        self.encryption.file.clone().unwrap_or_else(|| default_encryption_file(&self.data_dir))
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.data_dir.join("pki")
    }
}

/// The configuration a cluster makes for itself: with the other keys, so that whoever keeps those keeps this one.
#[must_use]
pub fn default_encryption_file(data_dir: &Path) -> PathBuf {
    data_dir.join("pki").join("encryption.yaml")
}

/// How objects are encrypted at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncryptionConfig {
    /// An `EncryptionConfiguration`; by default the cluster's own, for secrets.
    pub file: Option<PathBuf>,
    /// Whether changes of that file count while running; those of the cluster's own always do.
    pub reload: bool,
}

/// Where objects are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreConfig {
    /// In `<data-dir>/store`.
    #[default]
    Embedded,
    Etcd(EtcdConfig),
}

/// An etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `host:port` or URLs of the members.
    pub endpoints: Vec<String>,
    /// Who signs the members' certificates; without it, connections are plain.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key to authenticate with.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// Beginning of all keys, without a slash at its end.
    pub prefix: String,
    pub overrides: Vec<EtcdOverride>,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            ca_file: None,
            identity_files: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            overrides: Vec::new(),
        }
    }
}

/// Beginning of all keys, as in Kubernetes.
pub(crate) const DEFAULT_PREFIX: &str = "/registry";

/// Another etcd cluster for one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOverride {
    pub group: String,
    pub resource: String,
    pub endpoints: Vec<String>,
}

/// Certificates the operator brings instead of Ferry's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Serving certificate and key.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// Authorities of client certificates, in addition to Ferry's own.
    pub client_ca: Option<PathBuf>,
    /// Authorities of front proxies, in addition to Ferry's own.
    pub front_proxy_ca: Option<PathBuf>,
    /// Serving certificates and keys for some names; those in the certificate if no names are given.
    pub named: Vec<NamedFiles>,
    /// Client certificate and key for kubelets.
    pub kubelet_client: Option<(PathBuf, PathBuf)>,
    /// Authorities of kubelets' serving certificates. With it, no other certificate of a kubelet is accepted.
    pub kubelet_ca: Option<PathBuf>,
    /// Client certificate and key for extension servers.
    pub proxy_client: Option<(PathBuf, PathBuf)>,
    /// Versions and cipher suites of TLS.
    pub tls: TlsOptions,
}

/// A serving certificate for some names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub names: Vec<String>,
}

impl CertificateFiles {
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let pairs = [&self.serving, &self.kubelet_client, &self.proxy_client].into_iter().flatten();
        let pairs = pairs.flat_map(|(certificate, key)| [certificate, key]);
        let single = [&self.client_ca, &self.front_proxy_ca, &self.kubelet_ca].into_iter().flatten();
        let named = self.named.iter().flat_map(|files| [&files.certificate, &files.key]);
        pairs.chain(single).chain(named).map(PathBuf::as_path)
    }
}

/// Where the built-in audit trail of a cluster is.
#[must_use]
pub fn audit_trail(data_dir: &Path) -> PathBuf {
    data_dir.join("logs/audit.log")
}
