//! The control plane: store, certificates and API server, built, run and drained together.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apiserver::serve::{self, ServerConfig, Service};
use base::clock::Clock;
use base::tasks::TaskGroup;
use store::Store;
use tokio::net::TcpListener;

use crate::{Certificates, ClusterError, Config, storage};

/// How long background tasks may take to end once all requests have.
const TASK_GRACE: Duration = Duration::from_secs(5);

/// What every component is built from.
#[derive(Clone)]
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub certificates: Arc<Certificates>,
    pub clock: Clock,
    pub tasks: TaskGroup,
    /// Where the API is served.
    pub address: SocketAddr,
}

/// A control plane that is ready to serve.
pub struct ControlPlane<S> {
    parts: Parts,
    service: Arc<S>,
    listener: TcpListener,
    serving: ServerConfig,
    kubeconfig: PathBuf,
}

impl<S: Service> ControlPlane<S> {
    /// Opens everything; `service` makes the API server out of the parts.
    pub async fn build<E>(
        config: &Config,
        tasks: TaskGroup,
        service: impl AsyncFnOnce(&Parts) -> Result<Arc<S>, E>,
    ) -> Result<Self, E>
    where
        E: From<ClusterError>,
    {
        let data_dir = |source| ClusterError::DataDirectory { path: config.data_dir.clone(), source };
        std::fs::create_dir_all(&config.data_dir).map_err(data_dir)?;
        let listener = serve::bind(config.listen).map_err(ClusterError::Listen)?;
        let address = listener.local_addr().map_err(ClusterError::LocalAddress)?;
        let for_certificates = config.clone();
        let certificates =
            tokio::task::spawn_blocking(move || Certificates::open(&for_certificates, address));
        let store = storage::open(&config.data_dir, &config.store).await?;
        let certificates = match certificates.await {
            Ok(certificates) => Arc::new(certificates?),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let parts = Parts { store, certificates, clock: config.clock.clone(), tasks, address };
        let service = service(&parts).await?;
        parts.certificates.write_kubeconfig()?;
        Arc::clone(&parts.certificates).watch(&parts.tasks);
        Ok(Self {
            parts,
            service,
            listener,
            serving: config.serving.clone(),
            kubeconfig: config.kubeconfig(),
        })
    }

    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Where the administrator's kubeconfig is.
    #[must_use]
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfig
    }

    #[must_use]
    pub fn service(&self) -> &Arc<S> {
        &self.service
    }

    /// Serves until the task group is told to stop, then lets requests finish, ends the tasks and closes the store.
    pub async fn run(self) -> Result<(), ClusterError> {
        let Self { parts, service, listener, serving, .. } = self;
        let grace = serving.drain_grace;
        let tls = Arc::clone(&parts.certificates.tls);
        let drained = serve::serve(listener, tls, service, serving, parts.tasks.clone()).await;
        if let Err(error) = parts.tasks.drain(TASK_GRACE).await {
            tracing::warn!(%error, "tasks were cancelled");
        }
        parts.store.close().await;
        if drained { Ok(()) } else { Err(ClusterError::Undrained(grace)) }
    }
}
