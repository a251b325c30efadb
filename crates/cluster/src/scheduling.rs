//! The scheduler as a component: in the process of the control plane, or alone.

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use runtime::{Harness, LeaderElection, Leading, lead};
use scheduler::{Configuration, Scheduler, SchedulerMetrics};

use crate::ClusterError;

/// Starts the scheduler, which shares the harness' informers; with leader election it acts once it leads, and `tasks`
/// stops when it no longer does.
pub(crate) fn start(
    configuration: &Configuration,
    leader_election: bool,
    harness: &Harness,
    metrics: &Metrics,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    let context = harness.context(&scheduler::DESCRIPTOR).map_err(ClusterError::Client)?;
    let client = context.client.clone();
    let metrics = SchedulerMetrics::new(metrics).map_err(ClusterError::Metrics)?;
    let scheduler = Scheduler::new(context, configuration, Some(metrics)).map_err(ClusterError::Scheduler)?;
    let group = tasks.clone();
    let begin = move || {
        group.spawn(scheduler.run());
    };
    if !leader_election {
        begin();
        return Ok(());
    }
    let host = base::addresses::hostname().unwrap_or_else(|| "localhost".to_owned());
    let lease = &configuration.leader_election;
    let mut election = LeaderElection::new(&lease.resource_name, format!("{host}_{}", uuid::Uuid::new_v4()));
    election.namespace.clone_from(&lease.resource_namespace);
    let (clock, group) = (clock.clone(), tasks.clone());
    tasks.spawn(async move {
        if lead(&client, &election, &clock, &group, begin).await == Leading::Lost {
            group.stop();
        }
    });
    Ok(())
}
