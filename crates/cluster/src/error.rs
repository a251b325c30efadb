//! Errors of building and running a cluster.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use base::pki::PkiError;

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("failed to prepare the data directory {}", .path.display())]
    DataDirectory { path: PathBuf, source: io::Error },
    #[error("failed to set up encryption at rest")]
    Encryption(#[source] apiserver::encryption::EncryptionError),
    #[error("invalid scheduler configuration")]
    Scheduler(#[source] scheduler::config::ConfigError),
    #[error("failed to open the store")]
    Store(#[source] store::StoreError),
    #[error(
        "{} contains cluster certificates, but {} contains no store; restore the store from a backup (ferry restore into an empty directory), or remove {} to create a new cluster",
        .data_dir.display(), .store.display(), .data_dir.display()
    )]
    StoreMissing { data_dir: PathBuf, store: PathBuf },
    #[error("store failure: {0}")]
    StoreFailed(String),
    #[error("failed to open the cluster certificates")]
    Pki(#[source] PkiError),
    #[error("failed to read {}", .path.display())]
    ReadFile { path: PathBuf, source: io::Error },
    #[error("{} is invalid: {reason}", .path.display())]
    BadFile { path: PathBuf, reason: String },
    #[error("failed to set up TLS")]
    Tls(#[source] apiserver::serve::TlsError),
    #[error("failed to build the API server")]
    ApiServer(#[source] apiserver::BuildError),
    #[error("failed to start the listener")]
    Listen(#[source] apiserver::serve::ServeError),
    #[error("failed to write the kubeconfig {}", .path.display())]
    Kubeconfig { path: PathBuf, source: io::Error },
    #[error("invalid pod CIDR")]
    ClusterCidr(#[source] controllers::node_ipam::InvalidCidr),
    #[error("failed to load the certificate signing authority")]
    Signing(#[source] controllers::certificate::signing::SigningError),
    #[error("invalid controller selection")]
    Controllers(#[source] controllers::UnknownController),
    #[error("failed to connect to the API server")]
    Client(#[source] client::ClientError),
    #[error("failed to start the simulated nodes")]
    Simulation(#[source] simulate::FleetError),
    #[error("failed to start the exporter of traces")]
    Tracing(#[source] base::trace::ExporterError),
    #[error("failed to register metrics")]
    Metrics(#[source] base::metrics::MetricsError),
    #[error("failed to load the kubelet serving certificate")]
    Serving(#[source] rustls::Error),
    #[error("failed to join the cluster")]
    Join(#[from] crate::JoinError),
    #[error("invalid cluster domain")]
    Domain(#[source] dns::wire::NameError),
    #[error("failed to start cluster DNS")]
    Dns(#[source] dns::server::ListenError),
    #[error("failed to access the kernel's service rules")]
    Proxy(#[source] proxy::backend::BackendError),
    #[error("failed to listen on {address} for {purpose}")]
    Port { address: std::net::SocketAddr, purpose: &'static str, source: io::Error },
    #[error("invalid load balancer range")]
    LoadBalancerRange(#[source] cloud::local::PoolError),
    #[error("failed to query the cloud provider's capabilities")]
    CloudProvider(#[source] cloud::ProviderError),
    #[error("failed to connect to the cloud provider")]
    CloudUrl(#[source] apiserver::outbound::TargetError),
    #[error("failed to run the kubelet")]
    Kubelet(#[source] kubelet::KubeletError),
    #[error("failed to load the kubelet client certificate")]
    KubeletIdentity(#[source] rustls::Error),
    #[error("{} exists and is not empty", .path.display())]
    Occupied { path: PathBuf },
    #[error("{} is not a backup: {missing} is missing", .path.display())]
    NotABackup { path: PathBuf, missing: &'static str },
    #[error("failed to copy {} to {}", .from.display(), .to.display())]
    Copy { from: PathBuf, to: PathBuf, source: io::Error },
    #[error("failed to write the store snapshot")]
    Snapshot(#[source] store::StoreError),
    #[error("failed to fetch a snapshot from the cluster running in {}", .path.display())]
    LiveSnapshot { path: PathBuf, source: io::Error },
    #[error("failed to restore the store")]
    Restore(#[source] store::StoreError),
    #[error("requests were still in flight after the grace period of {0:?}")]
    Undrained(std::time::Duration),
}

impl ClusterError {
    /// The address and its server, if the error is that another process listens there.
    #[must_use]
    pub fn port_in_use(&self) -> Option<(SocketAddr, &'static str)> {
        let (address, source, server) = match self {
            Self::Listen(apiserver::serve::ServeError::Bind { address, source }) => {
                (address, source, "API server")
            }
            Self::Kubelet(kubelet::KubeletError::Listen(address, source)) => (address, source, "kubelet"),
            _ => return None,
        };
        (source.kind() == io::ErrorKind::AddrInUse).then_some((*address, server))
    }
}
