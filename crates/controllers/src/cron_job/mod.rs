//! The cron job loop. Watches cron jobs and the jobs they control; starts due jobs, and keeps the list of active ones
//! and a short history.
//!
//! Invariant: a scheduled time starts at most one job, because the job's name is derived from it.

pub mod plan;
pub mod schedule;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use client::{ClientError, Propagation, delete_options};
use jiff::tz::TimeZone;
use objects::batch::v1::{CronJob, CronJobStatus, Job};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError, controller_of};

use self::plan::{CronJobPlan, ObservedCronJob};
use crate::requeue;
use crate::shared::metrics;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "cronjob-controller",
    resource: "cronjobs.batch",
    identity: "system:serviceaccount:kube-system:cronjob-controller",
    workers: 5,
};

#[derive(Debug, thiserror::Error)]
enum CronJobError {
    #[error("failed to replace job {0}")]
    Replace(String, #[source] ClientError),
    #[error("failed to create job")]
    Create(#[source] ClientError),
    #[error("failed to update cron job status")]
    Status(#[source] ClientError),
}

struct CronJobs {
    cron_jobs: Cache<CronJob>,
    jobs: Cache<Job>,
    local: TimeZone,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let cron_jobs = ctx.watch_self::<CronJob>();
    let jobs = ctx.watch_owned::<Job>("CronJob");
    Box::new(CronJobs { cron_jobs, jobs, local: schedule::local_zone() })
}

#[async_trait]
impl Loop for CronJobs {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(mut cron_job) = self.cron_jobs.get_key(key) else { return Ok(Action::Done) };
        let uid = cron_job.metadata.uid.clone().unwrap_or_default();
        let controls = |job: &Job| controller_of(&job.metadata).is_some_and(|owner| owner.uid == uid);
        let jobs: Vec<_> = self.jobs.owned_by(&uid).into_iter().filter(|job| controls(job)).collect();
        if jobs.iter().any(|job| plan::ending(job).is_none() && !lists(&cron_job, job)) {
            // The cache may not show the list that names it.
            cron_job = Arc::new(ctx.client.get(&key.namespace, &key.name).await?);
        }
        let missing = missing(&cron_job, &jobs, ctx).await?;
        let now = ctx.clock.now();
        let observed = ObservedCronJob { cron_job, jobs, missing, local: self.local.clone(), now };
        let plan = plan::plan(&observed);
        for notice in &plan.notices {
            if notice.warning {
                ctx.recorder.warning(&*observed.cron_job, notice.reason, &notice.message);
            } else {
                ctx.recorder.normal(&*observed.cron_job, notice.reason, &notice.message);
            }
        }
        let mut status = plan.status.clone();
        let mut changed = plan.status_changed;
        let started = start(ctx, &observed.cron_job, &plan, &mut status, &mut changed).await;
        for job in &plan.prune {
            changed |= delete(ctx, &observed.cron_job, job, &mut status).await.unwrap_or(false);
        }
        if changed {
            let mut updated = observed.cron_job.as_ref().clone();
            updated.status = Some(status);
            ctx.client.update_status(&updated).await.map_err(CronJobError::Status)?;
        }
        started?;
        Ok(requeue(plan.requeue_after))
    }
}

fn lists(cron_job: &CronJob, job: &Job) -> bool {
    let active = cron_job.status.iter().flat_map(|status| status.active.iter().flatten());
    active.into_iter().any(|known| known.uid == job.metadata.uid)
}

/// Uids of listed jobs that are neither in the cache nor on the server.
async fn missing(
    cron_job: &CronJob,
    jobs: &[Arc<Job>],
    ctx: &Context,
) -> Result<HashSet<String>, ClientError> {
    let mut missing = HashSet::new();
    for known in cron_job.status.iter().flat_map(|status| status.active.iter().flatten()) {
        if jobs.iter().any(|job| job.metadata.uid == known.uid) {
            continue;
        }
        let namespace = known.namespace.as_deref().unwrap_or_default();
        match ctx.client.get::<Job>(namespace, known.name.as_deref().unwrap_or_default()).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => missing.extend(known.uid.clone()),
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}

async fn start(
    ctx: &Context,
    cron_job: &CronJob,
    plan: &CronJobPlan,
    status: &mut CronJobStatus,
    changed: &mut bool,
) -> Result<(), CronJobError> {
    let Some((job, due)) = &plan.start else { return Ok(()) };
    let namespace = cron_job.metadata.namespace.as_deref().unwrap_or_default();
    for running in &plan.replace {
        let name = running.name.clone().unwrap_or_default();
        let found = match ctx.client.get::<Job>(namespace, &name).await {
            Ok(found) => found,
            Err(error) => {
                ctx.recorder.warning(cron_job, "FailedGet", format!("Get job: {error}"));
                return Err(CronJobError::Replace(name, error));
            }
        };
        *changed |= delete(ctx, cron_job, &found, status)
            .await
            .map_err(|error| CronJobError::Replace(name, error))?;
    }
    let created = match ctx.client.create(namespace, job).await {
        Ok(created) => {
            let name = created.metadata.name.clone().unwrap_or_default();
            ctx.recorder.normal(cron_job, "SuccessfulCreate", format!("Created job {name}"));
            metrics::cron_job_created(ctx, *due);
            created
        }
        Err(error) if error.is_already_exists() => {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let known: Job = ctx.client.get(namespace, name).await.map_err(CronJobError::Create)?;
            let ours = controller_of(&known.metadata)
                .is_some_and(|owner| Some(&owner.uid) == cron_job.metadata.uid.as_ref());
            let listed = status.active.iter().flatten().any(|active| active.uid == known.metadata.uid);
            if !ours || listed {
                return Ok(());
            }
            known
        }
        Err(error) => {
            if !error.is_namespace_terminating() {
                ctx.recorder.warning(cron_job, "FailedCreate", format!("Error creating job: {error}"));
            }
            return Err(CronJobError::Create(error));
        }
    };
    plan::record_start(status, &created, *due);
    *changed = true;
    Ok(())
}

async fn delete(
    ctx: &Context,
    cron_job: &CronJob,
    job: &Job,
    status: &mut CronJobStatus,
) -> Result<bool, ClientError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let options = delete_options(job.metadata.uid.as_deref(), Some(Propagation::Background));
    match ctx.client.delete::<Job>(namespace, name, &options).await {
        Ok(()) => {
            plan::forget(status, job.metadata.uid.as_deref().unwrap_or_default());
            ctx.recorder.normal(cron_job, "SuccessfulDelete", format!("Deleted job {name}"));
            Ok(true)
        }
        Err(error) if error.is_not_found() => {
            Ok(plan::forget(status, job.metadata.uid.as_deref().unwrap_or_default()))
        }
        Err(error) => {
            ctx.recorder.warning(cron_job, "FailedDelete", format!("Deleted job: {error}"));
            Err(error)
        }
    }
}
