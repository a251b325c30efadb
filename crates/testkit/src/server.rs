//! A Ferry API server inside the test's process, on a free port of the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use cluster::{Certificates, ClusterError, Config, ControlPlane};
use store::Store;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use testbase::Client;

/// Time limit of a start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running server; dropping it aborts it, [`Server::stop`] drains it.
pub struct Server {
    pub address: SocketAddr,
    pub kubeconfig: PathBuf,
    /// A client with the administrator's certificate.
    pub admin: Client,
    /// Metrics of the API server and of the components that run with it.
    pub metrics: Metrics,
    certificates: Arc<Certificates>,
    tasks: TaskGroup,
    running: JoinHandle<Result<(), ClusterError>>,
    directory: Directory,
}

/// The data directory: the test's own, or one that is removed with the server.
enum Directory {
    Temporary(tempfile::TempDir),
    Existing(PathBuf),
}

impl Directory {
    fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Existing(path) => path,
        }
    }
}

impl Server {
    /// Starts a server with defaults in a temporary directory.
    pub async fn start() -> Result<Self> {
        Self::start_with(|_| {}).await
    }

    /// As [`Server::start`], with changes to the configuration.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Result<Self> {
        let directory = tempfile::tempdir().context("failed to create a data directory")?;
        Self::launch(Directory::Temporary(directory), change).await
    }

    /// Starts a server in `directory`, which may hold a cluster already and outlives the server.
    pub async fn start_in(directory: &Path) -> Result<Self> {
        Self::launch(Directory::Existing(directory.to_owned()), |_| {}).await
    }

    /// As [`Server::start_in`], with changes to the configuration.
    pub async fn start_in_with(directory: &Path, change: impl FnOnce(&mut Config)) -> Result<Self> {
        Self::launch(Directory::Existing(directory.to_owned()), change).await
    }

    /// Starts a server on a store that the test has opened, and may inspect or disturb.
    pub async fn start_on(store: Arc<dyn Store>, change: impl FnOnce(&mut Config)) -> Result<Self> {
        let directory = tempfile::tempdir().context("failed to create a data directory")?;
        Self::build(Directory::Temporary(directory), Some(store), change).await
    }

    async fn launch(directory: Directory, change: impl FnOnce(&mut Config)) -> Result<Self> {
        Self::build(directory, None, change).await
    }

    async fn build(
        directory: Directory,
        store: Option<Arc<dyn Store>>,
        change: impl FnOnce(&mut Config),
    ) -> Result<Self> {
        let mut config = Config::new(directory.path());
        config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.serving.drain_grace = Duration::from_secs(10);
        change(&mut config);
        let tasks = TaskGroup::new();
        let plane = match store {
            Some(store) => ControlPlane::build_on(store, config, tasks.clone()).await?,
            None => ControlPlane::build(config, tasks.clone()).await?,
        };
        let address = plane.address();
        let certificates = Arc::clone(plane.certificates());
        let kubeconfig = plane.kubeconfig().into();
        let metrics = plane.metrics().clone();
        let (ready, is_ready) = oneshot::channel();
        let running = tokio::spawn(plane.run(Box::new(move || {
            // The receiver is gone if the test has timed out.
            let _ = ready.send(());
        })));
        tokio::time::timeout(START_TIMEOUT, is_ready).await.context("the server did not start in time")??;
        let admin = Client::new(
            address,
            &certificates.pki.server_authority.certificate,
            Some(certificates.pki.leaves().admin.into()),
        )?;
        Ok(Self { address, kubeconfig, admin, metrics, certificates, tasks, running, directory })
    }

    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.directory.path()
    }

    /// The background tasks of the server.
    #[must_use]
    pub fn tasks(&self) -> &TaskGroup {
        &self.tasks
    }

    /// A client with a certificate of the cluster's client CA for any user.
    pub fn client_as(&self, user: &str, group: Option<&str>) -> Result<Client> {
        let pki = &self.certificates.pki;
        let now = base::clock::Clock::system().now();
        let identity = pki.client_authority.issue_client(user, group, now)?;
        Client::new(self.address, &pki.server_authority.certificate, Some(identity.into()))
    }

    /// A kubeconfig with a certificate of the cluster's client CA for any user, in the data directory.
    pub fn kubeconfig_of(&self, user: &str) -> Result<PathBuf> {
        let pki = &self.certificates.pki;
        let now = base::clock::Clock::system().now();
        let identity = pki.client_authority.issue_client(user, None, now)?;
        let url = format!("https://{}", self.address);
        let text = client::render_kubeconfig(&url, &pki.server_authority.certificate_pem, &identity);
        let path = self.data_dir().join(format!("{}.kubeconfig", user.replace(':', "-")));
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }

    /// A client with the certificate of the cluster's front proxy.
    pub fn front_proxy(&self) -> Result<Client> {
        let pki = &self.certificates.pki;
        let identity = pki.leaves().front_proxy_client;
        Client::new(self.address, &pki.server_authority.certificate, Some(identity.into()))
    }

    /// A client without credentials.
    pub fn anonymous(&self) -> Result<Client> {
        Client::new(self.address, &self.certificates.pki.server_authority.certificate, None)
    }

    /// A client without credentials, with HTTP/1.1.
    pub fn anonymous_http1(&self) -> Result<Client> {
        Client::http1(self.address, &self.certificates.pki.server_authority.certificate, None)
    }

    /// A client of this server with the certificate of another cluster's administrator.
    pub fn client_of(&self, other: &Self) -> Result<Client> {
        let authority = &self.certificates.pki.server_authority.certificate;
        Client::new(self.address, authority, Some(other.certificates.pki.leaves().admin.into()))
    }

    /// An administrator's client with HTTP/1.1.
    pub fn admin_http1(&self) -> Result<Client> {
        let pki = &self.certificates.pki;
        Client::http1(self.address, &pki.server_authority.certificate, Some(pki.leaves().admin.into()))
    }

    /// Starts the shutdown, without waiting.
    pub fn begin_stop(&self) {
        self.tasks.stop();
    }

    /// Drains the server and returns after it has stopped.
    pub async fn stop(self) -> Result<()> {
        self.tasks.stop();
        drop(self.admin);
        self.running.await.context("the server panicked")??;
        Ok(())
    }
}
