//! The components that act on the cluster: the controllers, and whatever else is a client of the API. Compiled into the
//! control plane they use clients inside the process; alone they use a kubeconfig. They cannot tell the difference.
//!
//! A new component adds its configuration to [`Components`], and a step to [`start`].

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use client::Client;
use runtime::{Harness, Identities, LeaderElection, Leading, LoopMetrics, lead};

use crate::{ClusterError, chain};

/// Who the controllers' informers are.
const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

/// Which components run, and how.
#[derive(Clone, Debug, Default)]
pub struct Components {
    /// The controllers to run, as `--controllers` says: `*`, a name, or `-` and a name. None if empty.
    pub controllers: Vec<String>,
    pub settings: controllers::Settings,
    /// Whether to wait for a lease before acting; needed wherever several processes serve one cluster.
    pub leader_election: bool,
}

impl Components {
    /// Everything a control plane has.
    #[must_use]
    pub fn all() -> Self {
        Self { controllers: vec!["*".to_owned()], ..Self::default() }
    }
}

/// Starts the components in `tasks`. With leader election, they begin when they lead, and `tasks` stops when they no
/// longer do.
pub(crate) fn start(
    components: &Components,
    shared: &dyn Fn(&str) -> Result<Client, ClusterError>,
    identities: &Arc<dyn Identities>,
    metrics: &Metrics,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    if components.controllers.is_empty() {
        return Ok(());
    }
    let rows = controllers::selected(&components.controllers).map_err(ClusterError::Controllers)?;
    let client = shared(CONTROLLER_MANAGER)?;
    let settings: Vec<Box<dyn Any + Send + Sync>> = vec![Box::new(components.settings.clone())];
    let harness = Harness::new(client.clone(), Arc::clone(identities), clock.clone(), tasks)
        .with_metrics(LoopMetrics::new(metrics).map_err(ClusterError::Metrics)?)
        .with_settings(settings);
    let begin = move || {
        for row in &rows {
            if let Err(error) = harness.start(row) {
                tracing::error!(controller = row.descriptor.name, error = chain(&error), "cannot start");
            }
        }
        tracing::info!(controllers = rows.len(), "started the controllers");
    };
    if components.leader_election {
        lead_then(client, "kube-controller-manager", clock, tasks, begin);
    } else {
        begin();
    }
    Ok(())
}

/// Calls `begin` once this process leads; ends the process' tasks when it no longer does, as Kubernetes' components end.
fn lead_then(
    client: Client,
    lease: &'static str,
    clock: &Clock,
    tasks: &TaskGroup,
    begin: impl FnOnce() + Send + 'static,
) {
    let host = base::addresses::hostname().unwrap_or_else(|| "localhost".to_owned());
    let election = LeaderElection::new(lease, format!("{host}_{}", uuid::Uuid::new_v4()));
    let (clock, group) = (clock.clone(), tasks.clone());
    tasks.spawn(async move {
        if lead(&client, &election, &clock, &group, begin).await == Leading::Lost {
            group.stop();
        }
    });
}

/// Runs components alone, against any API server, until `tasks` stops.
pub async fn run_alone(
    components: &Components,
    kubeconfig: &Path,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    let client = Client::connect(kubeconfig, "ferry").map_err(ClusterError::Client)?;
    let identities: Arc<dyn Identities> = Arc::new(client.clone());
    let metrics = Metrics::new(clock).map_err(ClusterError::Metrics)?;
    start(components, &|_| Ok(client.clone()), &identities, &metrics, clock, tasks)?;
    tasks.stopping().await;
    if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
        tracing::warn!(error = chain(&error), "tasks were cancelled");
    }
    Ok(())
}
