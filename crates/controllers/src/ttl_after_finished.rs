//! The TTL-after-finished loop. Watches jobs; deletes those that have been finished for longer than their TTL.

use async_trait::async_trait;
use client::{Propagation, delete_options};
use jiff::{SignedDuration, Timestamp};
use objects::batch::v1::Job;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

use crate::requeue;
use crate::shared::metrics;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ttl-after-finished-controller",
    resource: "jobs.batch",
    identity: "system:serviceaccount:kube-system:ttl-after-finished-controller",
    workers: 5,
};

struct TtlAfterFinished {
    jobs: Cache<Job>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let jobs = ctx.watch::<Job>(|change| {
        let job = change.object();
        if expiry(job).is_some() { vec![Key::of(&**job)] } else { Vec::new() }
    });
    Box::new(TtlAfterFinished { jobs })
}

#[async_trait]
impl Loop for TtlAfterFinished {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(job) = self.jobs.get_key(key) else { return Ok(Action::Done) };
        let Some(wait) = wait(&job, ctx.clock.now()) else { return Ok(Action::Done) };
        if wait.is_positive() {
            return Ok(requeue(Some(wait)));
        }
        // The job's TTL may have been raised since the cache was updated.
        let fresh: Job = match ctx.client.get(&key.namespace, &key.name).await {
            Err(error) if error.is_not_found() => return Ok(Action::Done),
            fresh => fresh?,
        };
        if self::wait(&fresh, ctx.clock.now()).is_none_or(|left| left.is_positive()) {
            return Ok(Action::Done);
        }
        let options = delete_options(fresh.metadata.uid.as_deref(), Some(Propagation::Foreground));
        match ctx.client.delete::<Job>(&key.namespace, &key.name, &options).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => {
                metrics::ttl_deletion(ctx, wait.abs());
                Ok(Action::Done)
            }
        }
    }
}

/// Remaining time of the job.
fn wait(job: &Job, now: Timestamp) -> Option<SignedDuration> {
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some(expiry(job)?.duration_since(now))
}

fn expiry(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ended = conditions.iter().find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })?;
    let since = ended.last_transition_time.as_ref()?.0;
    since.checked_add(SignedDuration::from_secs(ttl.into())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, meta, time};
    use objects::batch::v1::{JobCondition, JobSpec, JobStatus};

    #[test]
    fn only_finished_jobs_with_ttl_expire() {
        let job = |ttl, kind: &str, status: &str| Job {
            metadata: meta("j"),
            spec: Some(JobSpec { ttl_seconds_after_finished: ttl, ..JobSpec::default() }),
            status: Some(JobStatus {
                conditions: Some(vec![JobCondition {
                    type_: kind.into(),
                    status: status.into(),
                    last_transition_time: Some(time(100)),
                    ..JobCondition::default()
                }]),
                ..JobStatus::default()
            }),
        };
        for (job, expected) in [
            (job(Some(10), "Complete", "True"), Some(5)),
            (job(Some(0), "Failed", "True"), Some(-5)),
            (job(None, "Complete", "True"), None),
            (job(Some(10), "Complete", "False"), None),
            (job(Some(10), "FailureTarget", "True"), None),
        ] {
            assert_eq!(wait(&job, at(105)).map(|left| left.as_secs()), expected);
        }
        let mut going = job(Some(0), "Complete", "True");
        going.metadata.deletion_timestamp = Some(time(1));
        assert_eq!(wait(&going, at(105)), None);
    }
}
