//! `ferry metrics-server`: the component on a port of its own, against any API server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::metrics::{ResourceMetrics, ResourceMetricsConfig};
use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use base::version::user_agent;
use base::zpages;
use bytes::Bytes;
use client::{Client, Kubeconfig};
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{Method, Response};

use super::kubelet_tls::{KubeletClientConfig, OfKubeconfig};
use crate::delegated::{Pages, SecurePort};
use crate::status_port::metrics_page;
use crate::{ClusterError, chain};

/// Settings of the server.
#[derive(Clone, Debug)]
pub struct MetricsServerConfig {
    pub resource: ResourceMetricsConfig,
    pub kubelet: KubeletClientConfig,
    pub port: SecurePort,
    /// An empty path means the configuration of a pod.
    pub kubeconfig: PathBuf,
}

struct MetricsServerPages {
    component: Arc<ResourceMetrics>,
    metrics: Metrics,
}

impl Pages for MetricsServerPages {
    fn answer<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Response<Bytes>> {
        let path = head.uri.path();
        if let Some(name) = path.strip_prefix("/debug/pprof/").filter(|_| head.method == Method::GET) {
            let query = head.uri.query().unwrap_or_default();
            return Box::pin(async move { zpages::profile(name, query).await.into_response() });
        }
        let answer = match self.component.health(&head.uri) {
            Some(answer) => answer,
            None if path == "/metrics" => metrics_page(&self.metrics),
            None => self.component.answer(&head.method, &head.uri, &head.headers),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// Serves until `tasks` stops. `ready` gets the address once it listens.
pub fn run_metrics_server<'a>(
    config: MetricsServerConfig,
    clock: &'a Clock,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce(SocketAddr) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let client = Client::connect(&config.kubeconfig, &user_agent("metrics-server"))
            .map_err(ClusterError::Client)?;
        let kubeconfig = kubeconfig(&config.kubeconfig)?;
        let listening = config.port.bind()?;
        let metrics = Metrics::new(clock).map_err(ClusterError::Metrics)?;
        let kubelets = Arc::new(OfKubeconfig::new(kubeconfig, config.kubelet));
        let component =
            ResourceMetrics::start(config.resource, client.clone(), kubelets, &metrics, clock, tasks);
        let component = component.map_err(ClusterError::Metrics)?;
        ready(listening.address);
        let pages = Arc::new(MetricsServerPages { component, metrics });
        listening.serve(client, pages, clock, tasks).await?;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks were cancelled");
        }
        Ok(())
    })
}

fn kubeconfig(path: &Path) -> Result<Kubeconfig, ClusterError> {
    Kubeconfig::load(path)
        .map_err(|error| ClusterError::BadFile { path: path.to_owned(), reason: chain(&error) })
}
