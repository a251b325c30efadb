//! The scheduler as a component: in the process of the control plane, or alone.

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use base::version::user_agent_of;
use client::{Client, ClientError};
use runtime::{Context, Harness, LeaderElection};
use scheduler::{Configuration, Scheduler, SchedulerMetrics};

use crate::component_checks::{ActiveInformers, ComponentChecks};
use crate::components::{identity, run_while_leading};
use crate::{ClusterError, chain};

pub(crate) const COMPONENT: &str = "kube-scheduler";

/// User-Agent of the scheduler's client.
pub(crate) fn user_agent() -> String {
    user_agent_of(COMPONENT, "scheduler")
}

/// Context of the scheduler, whose client has the User-Agent of stock kube-scheduler.
fn context(harness: &Harness) -> Result<Context, ClientError> {
    let mut context = harness.context(&scheduler::DESCRIPTOR)?;
    context.client = context.client.called(&user_agent());
    Ok(context)
}

/// Starts the scheduler, which shares the harness' informers. With `election`, the client of leader election, it runs
/// while it holds the lease, with its own informers.
pub(crate) fn start(
    configuration: &Configuration,
    election: Option<Client>,
    harness: &Harness,
    metrics: &Metrics,
    checks: &ComponentChecks,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    let active = ActiveInformers::default();
    let metrics = SchedulerMetrics::new(metrics).map_err(ClusterError::Metrics)?;
    let build = |harness: &Harness| {
        let context = context(harness).map_err(ClusterError::Client)?;
        Scheduler::new(context, configuration, Some(metrics.clone())).map_err(ClusterError::Scheduler)
    };
    let Some(client) = election else {
        let first = build(harness)?;
        active.set(harness.informers());
        checks.set_scheduler_informers(harness.informers());
        checks.add_scheduler(None, &active, tasks);
        supervise(Some(first), harness.clone(), configuration.clone(), metrics, tasks);
        return Ok(());
    };
    // Configuration errors are reported at the start, not when the lease is acquired.
    let probe = tasks.scope();
    build(&harness.within(client.clone(), &probe)).map(drop)?;
    probe.abort();
    let lease = &configuration.leader_election;
    let mut election = LeaderElection::new(&lease.resource_name, identity());
    if let Some(metrics) = harness.metrics() {
        election = election.with_metrics(metrics);
    }
    election.namespace.clone_from(&lease.resource_namespace);
    checks.add_scheduler(Some(&election), &active, tasks);
    let (harness, settings, checks) = (harness.clone(), configuration.clone(), checks.clone());
    run_while_leading(client.clone(), election, clock, tasks, move |scope| {
        let harness = harness.within(client.clone(), scope);
        active.set(harness.informers());
        checks.set_scheduler_informers(harness.informers());
        supervise(None, harness, settings.clone(), metrics.clone(), scope);
    });
    Ok(())
}

/// Runs `first`, or one rebuilt from the caches: after a panic the state of a scheduler is unreliable.
fn supervise(
    mut first: Option<Scheduler>,
    harness: Harness,
    settings: Configuration,
    metrics: SchedulerMetrics,
    tasks: &TaskGroup,
) {
    tasks.supervise("kube-scheduler", move || {
        let again = || {
            let context = context(&harness).map_err(|error| chain(&error))?;
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
}
