//! Configuration of a cluster.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use apiserver::serve::{ServerConfig, TlsOptions};
use base::clock::Clock;
use base::egress::Proxies;
use base::machine_network::Family;

use crate::Components;

/// Control plane configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    /// Listen address of the API; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Advertised address of the API for other machines and pods; detected if absent.
    pub advertise: Option<IpAddr>,
    /// Families of the cluster's addresses, the primary one first, which the advertised address is chosen by.
    pub families: Vec<Family>,
    pub store: StoreConfig,
    /// Size limit of the embedded store; above it, writes other than deletes are rejected, as with etcd's quota.
    pub store_quota_bytes: u64,
    /// Time a control plane whose store has failed keeps serving reads, neither ready nor live, before it exits.
    pub store_failure_grace: Duration,
    pub files: CertificateFiles,
    /// First address of the service CIDR: the API server's cluster IP.
    pub service_ip: IpAddr,
    pub cluster_domain: String,
    pub serving: ServerConfig,
    /// Time for which requests are served, with a failing `/readyz`, after the termination signal: load balancers
    /// notice it before connections are refused.
    pub shutdown_delay: Duration,
    pub encryption: EncryptionConfig,
    /// Proxies to networks that are not reached directly; they apply to the whole process.
    pub egress: Option<Proxies>,
    /// Traces of this process; none are recorded if absent.
    pub tracing: Option<base::trace::TracingConfig>,
    pub api: apiserver::Config,
    pub clock: Clock,
    /// Check interval of certificates for renewal and changed files.
    pub certificate_check: Duration,
    /// Components besides the API server; none by default.
    pub components: Components,
}

impl Config {
    /// Defaults, with everything under `data_dir`.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let data_dir = data_dir.into();
        let mut api = apiserver::Config::default();
        api.audit.audit_log = Some(audit_log_file(&data_dir));
        Self {
            data_dir,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 6443)),
            advertise: None,
            families: Vec::new(),
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
            tracing: None,
            api,
            clock: Clock::system(),
            certificate_check: Duration::from_secs(60),
            components: Components::default(),
        }
    }

    /// Path of the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("kubeconfig")
    }

    /// Path of the encryption configuration.
    #[must_use]
    pub fn encryption_file(&self) -> PathBuf {
        self.encryption.file.clone().unwrap_or_else(|| default_encryption_file(&self.data_dir))
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.data_dir.join("pki")
    }
}

/// Encryption configuration that a cluster generates, stored with the other keys so that they are backed up together.
#[must_use]
pub fn default_encryption_file(data_dir: &Path) -> PathBuf {
    data_dir.join("pki").join("encryption.yaml")
}

/// Encryption at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncryptionConfig {
    /// An `EncryptionConfiguration`; by default the cluster's own, for secrets.
    pub file: Option<PathBuf>,
    /// If true, that file is reloaded when it changes; the cluster's own always is.
    pub reload: bool,
}

/// Storage backend.
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
    /// Certificate authority of the members; without it, connections are plain.
    pub ca_file: Option<PathBuf>,
    /// Client certificate and key.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// Key prefix, without a trailing slash.
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

/// Default key prefix of Kubernetes.
pub(crate) const DEFAULT_PREFIX: &str = "/registry";

/// etcd cluster of a single resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOverride {
    pub group: String,
    pub resource: String,
    pub endpoints: Vec<String>,
}

/// Certificates of the operator that replace Ferry's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Serving certificate and key.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// Client certificate authorities, in addition to Ferry's own.
    pub client_ca: Option<PathBuf>,
    /// Front proxy certificate authorities, in addition to Ferry's own.
    pub front_proxy_ca: Option<PathBuf>,
    /// Serving certificates and keys by name; without names, those in the certificate.
    pub named: Vec<NamedFiles>,
    /// Client certificate and key for kubelets.
    pub kubelet_client: Option<(PathBuf, PathBuf)>,
    /// Authorities of kubelets' serving certificates. If set, all other kubelet certificates are rejected.
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

/// Path of the built-in audit log of a cluster.
#[must_use]
pub fn audit_log_file(data_dir: &Path) -> PathBuf {
    data_dir.join("logs/audit.log")
}
