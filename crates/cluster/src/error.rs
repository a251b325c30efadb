//! Why a cluster could not be built or run.

use std::io;
use std::path::PathBuf;

use base::pki::PkiError;

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("preparing the data directory {}", .path.display())]
    DataDirectory { path: PathBuf, source: io::Error },
    #[error("setting up encryption at rest")]
    Encryption(#[source] apiserver::encryption::EncryptionError),
    #[error("configuring the scheduler")]
    Scheduler(#[source] scheduler::config::ConfigError),
    #[error("opening the store")]
    Store(#[source] store::StoreError),
    #[error(
        "{} has certificates of a cluster, but {} holds no store; restore the store from a backup (ferry restore into an empty directory), or remove {} to begin a new cluster",
        .data_dir.display(), .store.display(), .data_dir.display()
    )]
    StoreMissing { data_dir: PathBuf, store: PathBuf },
    #[error("the store has failed: {0}")]
    StoreFailed(String),
    #[error("opening the cluster's certificates")]
    Pki(#[source] PkiError),
    #[error("reading {}", .path.display())]
    ReadFile { path: PathBuf, source: io::Error },
    #[error("{} is not usable: {reason}", .path.display())]
    BadFile { path: PathBuf, reason: String },
    #[error("setting up TLS")]
    Tls(#[source] apiserver::serve::TlsError),
    #[error("building the API server")]
    ApiServer(#[source] apiserver::BuildError),
    #[error("starting the listener")]
    Listen(#[source] apiserver::serve::ServeError),
    #[error("asking the listener for its address")]
    LocalAddress(#[source] io::Error),
    #[error("writing the kubeconfig {}", .path.display())]
    Kubeconfig { path: PathBuf, source: io::Error },
    #[error("reading the ranges of pod addresses")]
    ClusterCidr(#[source] controllers::node_ipam::InvalidCidr),
    #[error("using the authority that signs")]
    Signing(#[source] controllers::certificate::signing::SigningError),
    #[error("choosing controllers")]
    Controllers(#[source] controllers::UnknownController),
    #[error("connecting to the API server")]
    Client(#[source] client::ClientError),
    #[error("registering metrics")]
    Metrics(#[source] base::metrics::MetricsError),
    #[error("using the certificate of the kubelet's API")]
    Serving(#[source] rustls::Error),
    #[error("joining the cluster")]
    Join(#[from] crate::JoinError),
    #[error("the cluster's domain")]
    Domain(#[source] dns::wire::NameError),
    #[error("starting the name service")]
    Dns(#[source] dns::server::ListenError),
    #[error("talking to the kernel about services")]
    Proxy(#[source] proxy::backend::BackendError),
    #[error("listening on {address} for {purpose}")]
    Port { address: std::net::SocketAddr, purpose: &'static str, source: io::Error },
    #[error("the addresses of load balancers")]
    LoadBalancerRange(#[source] cloud::local::PoolError),
    #[error("asking the cloud provider what it can do")]
    CloudProvider(#[source] cloud::ProviderError),
    #[error("reaching the cloud provider")]
    CloudUrl(#[source] apiserver::outbound::TargetError),
    #[error("running the kubelet")]
    Kubelet(#[source] kubelet::KubeletError),
    #[error("using the certificate that kubelets know the API server by")]
    KubeletIdentity(#[source] rustls::Error),
    #[error("{} exists and is not empty", .path.display())]
    Occupied { path: PathBuf },
    #[error("{} is not a backup: it has no {missing}", .path.display())]
    NotABackup { path: PathBuf, missing: &'static str },
    #[error("copying {} to {}", .from.display(), .to.display())]
    Copy { from: PathBuf, to: PathBuf, source: io::Error },
    #[error("writing the store's snapshot")]
    Snapshot(#[source] store::StoreError),
    #[error("fetching a snapshot from the cluster that runs in {}", .path.display())]
    LiveSnapshot { path: PathBuf, source: io::Error },
    #[error("restoring the store")]
    Restore(#[source] store::StoreError),
    #[error("requests were still running when the grace of {0:?} was over")]
    Undrained(std::time::Duration),
}
