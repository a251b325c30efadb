//! The job loop. Watches jobs and their pods; creates and deletes pods, and counts each finished one exactly once.
//!
//! Invariant: a pod's outcome is in the job's status, as a uid or in the numbers, before its finalizer is removed.

pub mod account;
pub mod backoff;
mod counted;
pub mod indexes;
pub mod observed;
pub mod plan;
pub mod policies;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use client::{ClientError, Patch, delete_options};
use futures_util::future::join_all;
use objects::batch::v1::Job;
use objects::core::v1::Pod;
use parking_lot::Mutex;
use runtime::{
    Action, Cache, Change, Context, Descriptor, Expectations, Key, Loop, LoopError, controller_of,
};
use serde_json::json;
use tokio::time::Instant;

use self::account::JobOutcome;
use self::backoff::Backoffs;
use self::observed::{FINALIZER, ObservedJob, has_finalizer, uid};
use crate::requeue;
use crate::shared::adoption::{claim, controller_reference, index_orphans, orphans};
use crate::shared::slow_start::slow_start;
use crate::shared::{metrics, pod_facts, selector};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "job-controller",
    resource: "jobs.batch",
    identity: "system:serviceaccount:kube-system:job-controller",
    workers: 5,
};

/// Pods that hold the finalizer, by namespace and name of their job; an empty name stands for those without one.
const TRACKED: &str = "job-tracked";

#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("failed to update job status")]
    Status(#[source] ClientError),
    #[error("failed to adopt or release pods")]
    Claim(#[source] ClientError),
    #[error("failed to create or delete pods")]
    Pods(#[source] ClientError),
    #[error("failed to remove pod finalizers")]
    Finalizers(#[source] ClientError),
}

struct Jobs {
    jobs: Cache<Job>,
    pods: Cache<Pod>,
    memory: Arc<Memory>,
    backoffs: Backoffs,
    /// Uids of finished jobs that the cache does not show as finished yet.
    ended: Mutex<HashSet<String>>,
}

/// State of this process beyond its caches.
#[derive(Default)]
struct Memory {
    expectations: Expectations,
    /// Pods whose finalizer is removed, though the cache still shows it.
    released: Mutex<HashMap<Key, HashSet<String>>>,
}

impl Memory {
    fn saw_released(&self, key: &Key, uid: &str) {
        if let Some(pods) = self.released.lock().get_mut(key) {
            pods.remove(uid);
        }
    }

    fn forget(&self, key: &Key) {
        self.expectations.forget(key);
        self.released.lock().remove(key);
    }
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let jobs = ctx.watch_self::<Job>();
    let memory = Arc::new(Memory::default());
    let (seen, all_jobs) = (Arc::clone(&memory), jobs.clone());
    let counters = metrics::of(ctx).cloned();
    let pods = ctx.watch::<Pod>(move |change| {
        if let Some(metrics) = &counters {
            counted::tracked_pod(metrics, change);
        }
        pod_changed(change, &seen, &all_jobs)
    });
    if let Some(metrics) = metrics::of(ctx).cloned() {
        jobs.on_event(move |change| counted::added_job(&metrics, change));
    }
    index_orphans(&pods);
    pods.add_index(
        TRACKED,
        |pod: &Pod| {
            if has_finalizer(pod) { vec![job_of(pod).to_string()] } else { Vec::new() }
        },
    );
    Box::new(Jobs { jobs, pods, memory, backoffs: Backoffs::default(), ended: Mutex::default() })
}

/// Key of the pod's job; without a name if it has none.
fn job_of(pod: &Pod) -> Key {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "Job");
    Key::new(namespace, owner.map_or("", |owner| &owner.name))
}

fn pod_changed(change: &Change<Pod>, memory: &Memory, jobs: &Cache<Job>) -> Vec<Key> {
    let pod = change.object();
    let key = job_of(pod);
    let gone = matches!(change, Change::Deleted(_));
    let mut keys = Vec::new();
    if !key.name.is_empty() {
        if matches!(change, Change::Added(_)) {
            memory.expectations.created(&key);
        }
        if gone || pod_facts::is_deleting(pod) {
            memory.expectations.deleted(&key, uid(pod));
        }
        if gone || !has_finalizer(pod) {
            memory.saw_released(&key, uid(pod));
        }
        keys.push(key.clone());
    } else if controller_of(&pod.metadata).is_none() && !gone {
        // A job may adopt it; without such a job its finalizer must be removed.
        let namespace = &key.namespace;
        keys.extend(jobs.list(namespace).iter().filter(|job| wants(job, pod)).map(|job| Key::of(&**job)));
        if has_finalizer(pod) && keys.is_empty() {
            keys.push(key.clone());
        }
    }
    if let Some(old) = change.old().map(|old| job_of(old)).filter(|old| *old != key && !old.name.is_empty()) {
        keys.push(old);
    }
    keys
}

fn wants(job: &Job, pod: &Pod) -> bool {
    let wanted = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    wanted.is_some_and(|wanted| selector::matches(wanted, pod.metadata.labels.as_ref()))
}

#[async_trait]
impl Loop for Jobs {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let job = self.jobs.get_key(key);
        self.release_unowned(key, job.as_deref(), ctx).await?;
        let Some(job) = job else {
            self.memory.forget(key);
            self.backoffs.forget(&key.to_string());
            return Ok(Action::Done);
        };
        let job_uid = job.metadata.uid.clone().unwrap_or_default();
        let spec = job.spec.clone().unwrap_or_default();
        if spec.managed_by.as_deref().is_some_and(|manager| manager != "kubernetes.io/job-controller") {
            return Ok(Action::Done);
        }
        if job.status.as_ref().is_some_and(plan::is_finished) {
            self.backoffs.forget(&key.to_string());
            self.ended.lock().remove(&job_uid);
            return Ok(Action::Done);
        }
        if self.ended.lock().contains(&job_uid) {
            return Ok(Action::Done);
        }
        if !matches!(spec.completion_mode.as_deref(), None | Some("NonIndexed" | "Indexed")) {
            let note = "Skipped Job sync because completion mode is unknown";
            ctx.recorder.warning(&*job, "UnknownCompletionMode", note);
            return Ok(Action::Done);
        }
        let (started, mode) = (Instant::now(), counted::mode(&job));
        let settled = self.memory.expectations.satisfied(key);
        let wanted = spec.selector.clone().unwrap_or_default();
        let pods = claim(&ctx.client, &self.pods, &*job, &wanted, |_| true).await.map_err(JobError::Claim)?;
        let released = self.memory.released.lock().get(key).cloned().unwrap_or_default();
        let backoff = self.backoffs.get(&key.to_string());
        let observed = ObservedJob { job, pods, released, backoff, settled, now: ctx.clock.now() };
        let decision = plan::decide(&observed);
        let outcome = self.carry_out(key, ctx, &observed, &decision).await;
        if let Some(metrics) = metrics::of(ctx) {
            counted::sync(metrics, mode, &observed, &decision, outcome.is_ok(), started.elapsed());
        }
        outcome
    }
}

impl Jobs {
    async fn carry_out(
        &self,
        key: &Key,
        ctx: &Context,
        observed: &ObservedJob,
        decision: &plan::Decision,
    ) -> Result<Action, LoopError> {
        let (outcome, trouble) = self.act(key, ctx, observed, decision).await;
        let account = account::account(observed, decision, outcome);
        let mut job = observed.job.as_ref().clone();
        job.status = Some(account.status.clone());
        if account.write {
            job = ctx.client.update_status(&job).await.map_err(JobError::Status)?;
            self.backoffs.set(&key.to_string(), decision.backoff);
            if let Some(metrics) = metrics::of(ctx) {
                let before = observed.job.status.clone().unwrap_or_default();
                counted::counted_pods(metrics, observed, &before, &account.status);
                counted::judged_pods(metrics, observed, &before, &account.release);
            }
        }
        for notice in &account.notices {
            record_notice(ctx, &job, notice);
        }
        let mut tracked = account.tracked;
        let (released, failure) = self.release(key, ctx, &account.release).await;
        tracked.retain(|uid| !released.contains(uid));
        let mut status = job.status.take().unwrap_or_default();
        let mut write = account::settle(&mut status, &tracked);
        let mut finished = None;
        if let Some(condition) = account.finished.filter(|_| !account.more && failure.is_none())
            && account::finish(&mut status, &condition, account.terminating, observed.now)
        {
            finished = Some(condition);
            write = true;
        }
        if write {
            job.status = Some(status.clone());
            job = ctx.client.update_status(&job).await.map_err(JobError::Status)?;
            if let Some(metrics) = metrics::of(ctx) {
                counted::counted_pods(metrics, observed, &account.status, &status);
            }
        } else {
            job.status = Some(status);
        }
        if let Some(condition) = finished {
            self.ended.lock().insert(job.metadata.uid.clone().unwrap_or_default());
            if let Some(metrics) = metrics::of(ctx) {
                counted::finished(metrics, &job, &condition);
            }
            let completions = job.spec.as_ref().and_then(|spec| spec.completions);
            for notice in
                account::ending_notices(&job.status.clone().unwrap_or_default(), completions, &condition)
            {
                record_notice(ctx, &job, &notice);
            }
            return Ok(Action::Done);
        }
        if let Some(error) = failure {
            return Err(JobError::Finalizers(error).into());
        }
        if let Some(error) = trouble {
            return Err(JobError::Pods(error).into());
        }
        Ok(requeue(decision.requeue_after))
    }

    /// Deletes and creates pods.
    async fn act(
        &self,
        key: &Key,
        ctx: &Context,
        observed: &ObservedJob,
        decision: &plan::Decision,
    ) -> (JobOutcome, Option<ClientError>) {
        let mut outcome = JobOutcome::default();
        let mut trouble = None;
        let expectations = &self.memory.expectations;
        if decision.release_deleted {
            expectations.expect_deletions(key, decision.delete.iter().map(|pod| uid(pod)));
        }
        let deletions = decision.delete.iter().map(|pod| delete_pod(ctx, pod, decision.release_deleted));
        for (pod, result) in decision.delete.iter().zip(join_all(deletions).await) {
            if let Err(error) = result {
                expectations.deleted(key, uid(pod));
                if !error.is_not_found() {
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    let note = format!("Error deleting: {error}");
                    ctx.recorder.warning(&*observed.job, "FailedDelete", note);
                    tracing::debug!(%key, pod = name, "failed to delete pod");
                    trouble = Some(error);
                    continue;
                }
            } else {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                ctx.recorder.normal(&*observed.job, "SuccessfulDelete", format!("Deleted pod: {name}"));
            }
            outcome.deleted += 1;
            outcome.deleted_ready += usize::from(pod_facts::is_ready(pod));
        }
        if decision.create.is_empty() {
            return (outcome, trouble);
        }
        let wanted = decision.create.len();
        expectations.expect_creations(key, wanted);
        let owner = controller_reference(&*observed.job);
        let create = |new: plan::NewPod| {
            let pod = plan::make_pod(&observed.job, &new, owner.clone());
            async move {
                let made = ctx.client.create(&key.namespace, &pod).await?;
                let name = made.metadata.name.unwrap_or_default();
                ctx.recorder.normal(&*observed.job, "SuccessfulCreate", format!("Created pod: {name}"));
                Ok::<_, ClientError>(())
            }
        };
        let (created, failure) = slow_start(decision.create.clone(), create).await;
        outcome.created = created;
        expectations.creations_failed(key, wanted - created);
        if let Some(metrics) = metrics::of(ctx) {
            let failed = usize::from(failure.is_some());
            counted::created_pods(metrics, observed, decision, created, failed);
        }
        if let Some(error) = failure {
            if error.is_namespace_terminating() {
                return (outcome, trouble);
            }
            ctx.recorder.warning(&*observed.job, "FailedCreate", format!("Error creating: {error}"));
            trouble = Some(error);
        }
        (outcome, trouble)
    }

    /// Removes the finalizer of counted pods; returns the uids of those without it.
    async fn release(
        &self,
        key: &Key,
        ctx: &Context,
        pods: &[Arc<Pod>],
    ) -> (HashSet<String>, Option<ClientError>) {
        if pods.is_empty() {
            return (HashSet::new(), None);
        }
        self.memory
            .released
            .lock()
            .entry(key.clone())
            .or_default()
            .extend(pods.iter().map(|pod| uid(pod).to_owned()));
        let (mut done, mut failure) = (HashSet::new(), None);
        let removals = pods.iter().map(|pod| remove_finalizer(ctx, pod));
        for (pod, result) in pods.iter().zip(join_all(removals).await) {
            match result {
                Ok(()) => {
                    done.insert(uid(pod).to_owned());
                }
                Err(error) => {
                    self.memory.saw_released(key, uid(pod));
                    if error.is_not_found() {
                        done.insert(uid(pod).to_owned());
                    } else {
                        failure = Some(error);
                    }
                }
            }
        }
        (done, failure)
    }

    /// Removes the finalizer of pods whose job is deleted, or that have none: no job will count them.
    async fn release_unowned(&self, key: &Key, job: Option<&Job>, ctx: &Context) -> Result<(), LoopError> {
        let uid_now = job.and_then(|job| job.metadata.uid.as_deref());
        let unowned: Vec<_> = if key.name.is_empty() {
            let unowned = orphans(&self.pods, &key.namespace).into_iter().filter(|pod| has_finalizer(pod));
            unowned.filter(|pod| !self.jobs.list(&key.namespace).iter().any(|job| wants(job, pod))).collect()
        } else {
            let tracked = self.pods.indexed(TRACKED, &key.to_string()).into_iter();
            let owner = |pod: &Pod| controller_of(&pod.metadata).map(|owner| owner.uid.clone());
            tracked.filter(|pod| owner(pod).as_deref() != uid_now).collect()
        };
        if unowned.is_empty() {
            return Ok(());
        }
        if !key.name.is_empty() {
            // The cache of jobs may be older than that of pods.
            let live = ctx.client.get::<Job>(&key.namespace, &key.name).await;
            let live_uid = match live {
                Ok(job) => job.metadata.uid,
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error.into()),
            };
            let owner = |pod: &Pod| controller_of(&pod.metadata).map(|owner| owner.uid.clone());
            for pod in unowned.iter().filter(|pod| owner(pod) != live_uid) {
                ignore_missing(remove_finalizer(ctx, pod).await)?;
            }
            return Ok(());
        }
        for pod in &unowned {
            ignore_missing(remove_finalizer(ctx, pod).await)?;
        }
        Ok(())
    }
}

fn ignore_missing(result: Result<(), ClientError>) -> Result<(), ClientError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

async fn delete_pod(ctx: &Context, pod: &Pod, release: bool) -> Result<(), ClientError> {
    if release {
        remove_finalizer(ctx, pod).await?;
    }
    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    let options = delete_options(Some(uid(pod)), None);
    ctx.client.delete::<Pod>(namespace.unwrap_or_default(), name.unwrap_or_default(), &options).await
}

async fn remove_finalizer(ctx: &Context, pod: &Pod) -> Result<(), ClientError> {
    if !has_finalizer(pod) {
        return Ok(());
    }
    let patch =
        Patch::Strategic(json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } }));
    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    let patched =
        ctx.client.patch::<Pod>(namespace.unwrap_or_default(), name.unwrap_or_default(), None, &patch);
    patched.await.map(|_| ())
}

fn record_notice(ctx: &Context, job: &Job, notice: &account::Notice) {
    if notice.warning {
        ctx.recorder.warning(job, &notice.reason, &notice.message);
    } else {
        ctx.recorder.normal(job, &notice.reason, &notice.message);
    }
}
