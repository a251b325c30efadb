//! The scheduler as a component: in the process of the control plane, or alone.

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use runtime::{Harness, LeaderElection, Leading, lead};
use scheduler::{Configuration, Scheduler, SchedulerMetrics};

use crate::{ClusterError, chain};

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
    let first =
        Scheduler::new(context, configuration, Some(metrics.clone())).map_err(ClusterError::Scheduler)?;
    let (group, harness, settings) = (tasks.clone(), harness.clone(), configuration.clone());
    let begin = move || {
        let mut first = Some(first);
        group.supervise("kube-scheduler", move || {
            // After a panic its state is in doubt: the next scheduler builds its own from the caches.
            let again = || {
                let context = harness.context(&scheduler::DESCRIPTOR).map_err(|error| chain(&error))?;
                Scheduler::new(context, &settings, Some(metrics.clone())).map_err(|error| chain(&error))
            };
            let scheduler = first.take().map_or_else(again, Ok);
            async move {
                match scheduler {
                    Ok(scheduler) => scheduler.run().await,
                    Err(error) => tracing::error!(error, "failed to build the scheduler"),
                }
            }
        });
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
