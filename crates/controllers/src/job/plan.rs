//! Pods of a job to delete and create, and whether the job finishes. Pure.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use jiff::SignedDuration;
use objects::batch::v1::{Job, JobCondition, JobStatus};
use objects::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use objects::meta::v1::{OwnerReference, Time};

use super::backoff::{self, Backoff};
use super::indexes::Indexes;
use super::observed::{
    COMPLETION_INDEX, FAILURE_COUNT, FINALIZER, IGNORED_FAILURE_COUNT, ObservedJob, all_failures,
    annotation_number, completion_index, condition, is_true, new_condition,
};
use super::policies::{self, Verdict};
use crate::shared::pod_facts;

/// Maximum number of pods created or deleted in one reconciliation.
const BURST: usize = 500;

/// Actions of a reconciliation before counting.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    pub status: JobStatus,
    pub active: Vec<Arc<Pod>>,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// True if their finalizers are removed first: they will not be counted.
    pub release_deleted: bool,
    /// Pods to create, by index; `None` for a job without indexes.
    pub create: Vec<NewPod>,
    /// The job finishes with this condition, provided all active pods could be deleted.
    pub finishing: Option<JobCondition>,
    /// True if the pods were managed, so suspension may be reported.
    pub tended: bool,
    pub succeeded: i64,
    pub recorded_succeeded: Indexes,
    pub succeeded_indexes: Indexes,
    pub failed_indexes: Option<Indexes>,
    pub awaiting: BTreeMap<u32, Arc<Pod>>,
    pub backoff: Backoff,
    pub requeue_after: Option<SignedDuration>,
}

/// A pod to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPod {
    pub index: Option<u32>,
    /// Failures of its index so far, counted and ignored, if the job limits them per index.
    pub failures: Option<(i32, i32)>,
}

/// Decides what to do with the job's pods.
#[must_use]
pub fn decide(observed: &ObservedJob) -> Decision {
    let spec = observed.spec();
    let now = observed.now;
    let mut status = observed.job.status.clone().unwrap_or_default();
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default().clone();
    let set = |uids: &Option<Vec<String>>| uids.iter().flatten().cloned().collect::<HashSet<_>>();
    let (counted_succeeded, counted_failed) = (set(&uncounted.succeeded), set(&uncounted.failed));
    let active: Vec<_> = observed.pods.iter().filter(|pod| pod_facts::is_active(pod)).cloned().collect();

    let new_succeeded = observed.fresh(&counted_succeeded, pod_facts::is_succeeded);
    let new_failed = observed.fresh(&counted_failed, |pod| observed.counts_as_failed(pod));
    let count = |recorded: Option<i32>, uncounted: usize| i64::from(recorded.unwrap_or(0)) + uncounted as i64;
    let mut succeeded = count(status.succeeded, counted_succeeded.len() + new_succeeded.len());
    let really_failed = new_failed.iter().filter(|pod| observed.judge(pod).counts()).count();
    let failed = count(status.failed, counted_failed.len() + really_failed);
    let suspended = spec.suspend == Some(true);
    if status.start_time.is_none() && !suspended {
        status.start_time = Some(Time(now));
    }
    let backoff = observed.backoff.after(&new_succeeded, &new_failed);

    let limit = spec.backoff_limit.unwrap_or(6);
    let failure =
        |reason: &str, message: &str| Some(new_condition("FailureTarget", "True", reason, message, now));
    let mut requeue_after = None;
    let mut finishing =
        condition(&status, "SuccessCriteriaMet").filter(|known| known.status == "True").cloned();
    if finishing.is_none() {
        finishing = match condition(&status, "FailureTarget").filter(|known| known.status == "True") {
            Some(target) => Some(terminal("Failed", target, now)),
            None => fail_job_message(observed).and_then(|message| failure("PodFailurePolicy", &message)),
        };
    }
    if finishing.is_none() {
        let deadline = observed.deadline_in(status.start_time.as_ref());
        if failed > i64::from(limit) || observed.restarts_exceed(limit) {
            finishing = failure("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        } else if deadline.is_some_and(|left| !left.is_positive()) {
            finishing = failure("DeadlineExceeded", "Job was active longer than specified deadline");
        } else {
            requeue_after = deadline;
        }
    }
    let mut decision = Decision { status, active, backoff, requeue_after, ..Decision::default() };
    if observed.is_indexed() {
        let completions = observed.completions();
        let (before, after) = observed.succeeded_indexes();
        succeeded = after.len() as i64;
        if let Some(per_index) = observed.per_index_limit() {
            let failed = observed.failed_indexes(per_index);
            if finishing.is_none() {
                let most = spec.max_failed_indexes.and_then(|most| usize::try_from(most).ok());
                if most.is_some_and(|most| failed.len() > most) {
                    let message = "Job has exceeded the specified maximal number of failed indexes";
                    finishing = failure("MaxFailedIndexesExceeded", message);
                } else if !failed.is_empty() && failed.len() + after.len() >= completions as usize {
                    finishing = failure("FailedIndexes", "Job has failed indexes");
                }
            }
            decision.awaiting = observed.awaiting_replacement(&decision.active, &after, &failed);
            decision.failed_indexes = Some(failed);
        }
        if finishing.is_none() {
            let met = policies::success(spec.success_policy.as_ref(), completions, &after);
            finishing = met
                .map(|message| new_condition("SuccessCriteriaMet", "True", "SuccessPolicy", &message, now));
        }
        (decision.recorded_succeeded, decision.succeeded_indexes) = (before, after);
    }
    decision.succeeded = succeeded;
    decision.finishing = finishing;
    if decision.finishing.is_some() {
        decision.delete.clone_from(&decision.active);
    } else if observed.settled && observed.job.metadata.deletion_timestamp.is_none() {
        tend(observed, &mut decision, suspended);
    }
    decision
}

/// Terminal condition for an earlier interim one.
#[must_use]
pub fn terminal(kind: &str, interim: &JobCondition, now: jiff::Timestamp) -> JobCondition {
    let (reason, message) = (interim.reason.as_deref(), interim.message.as_deref());
    new_condition(kind, "True", reason.unwrap_or_default(), message.unwrap_or_default(), now)
}

fn fail_job_message(observed: &ObservedJob) -> Option<String> {
    observed.pods.iter().filter(|pod| observed.counts_as_failed(pod)).find_map(|pod| {
        match observed.judge(pod) {
            Verdict::FailJob(message) => Some(message),
            _ => None,
        }
    })
}

/// Adjusts the number of active pods to the desired one.
fn tend(observed: &ObservedJob, decision: &mut Decision, suspended: bool) {
    let spec = observed.spec();
    let active = decision.active.len() as i64;
    decision.tended = true;
    decision.release_deleted = true;
    if suspended {
        decision.delete = surplus(observed, &decision.active, decision.active.len());
        return;
    }
    let parallelism = i64::from(spec.parallelism.unwrap_or(1));
    let wanted = match spec.completions {
        None if decision.succeeded > 0 => active,
        None => parallelism,
        Some(completions) => (i64::from(completions) - decision.succeeded).min(parallelism).max(0),
    };
    let excess = usize::try_from(active - wanted).unwrap_or(0);
    decision.delete = surplus(observed, &decision.active, excess);
    decision.delete.truncate(BURST);
    if !decision.delete.is_empty() {
        return;
    }
    let terminating = if observed.replaces_only_failed() {
        observed.pods.iter().filter(|pod| pod_facts::is_terminating(pod)).count() as i64
    } else {
        0
    };
    let missing = usize::try_from(wanted - terminating - active).unwrap_or(0).min(BURST);
    if missing == 0 {
        return;
    }
    let per_index = observed.per_index_limit().is_some();
    if !per_index {
        let wait = decision.backoff.remaining(observed.now);
        if wait.is_positive() {
            sooner(&mut decision.requeue_after, wait);
            return;
        }
    }
    if !observed.is_indexed() {
        decision.create = vec![NewPod::default(); missing];
        return;
    }
    let mut wait = None;
    for index in pending_indexes(observed, decision, missing) {
        let replaced = decision.awaiting.get(&index);
        let left = replaced.map_or(SignedDuration::ZERO, |pod| {
            let failures = u32::try_from(all_failures(pod)).unwrap_or(0).saturating_add(1);
            Backoff { failures, last_failure: Some(backoff::finished_at(pod)) }.remaining(observed.now)
        });
        if per_index && left.is_positive() {
            sooner(&mut wait, left);
            continue;
        }
        let failures = per_index.then(|| next_failures(observed, replaced));
        decision.create.push(NewPod { index: Some(index), failures });
    }
    if let (Some(wait), true) = (wait, decision.create.is_empty()) {
        sooner(&mut decision.requeue_after, wait);
    }
}

fn sooner(when: &mut Option<SignedDuration>, wait: SignedDuration) {
    *when = Some(when.map_or(wait, |known| known.min(wait)));
}

fn pending_indexes(observed: &ObservedJob, decision: &Decision, count: usize) -> Vec<u32> {
    let of = |pods: &mut dyn Iterator<Item = &Arc<Pod>>| {
        Indexes::from_set(&pods.filter_map(|pod| completion_index(pod)).collect())
    };
    let mut taken = decision.succeeded_indexes.union(&of(&mut decision.active.iter()));
    if observed.replaces_only_failed() {
        taken = taken.union(&of(&mut observed.pods.iter().filter(|pod| pod_facts::is_terminating(pod))));
    }
    if let Some(failed) = &decision.failed_indexes {
        taken = taken.union(failed);
    }
    taken.first_missing(count, observed.completions())
}

fn next_failures(observed: &ObservedJob, replaced: Option<&Arc<Pod>>) -> (i32, i32) {
    let Some(pod) = replaced else { return (0, 0) };
    let (counted, ignored) =
        (annotation_number(pod, FAILURE_COUNT), annotation_number(pod, IGNORED_FAILURE_COUNT));
    if observed.judge(pod).counts() {
        (counted.saturating_add(1), ignored)
    } else {
        (counted, ignored.saturating_add(1))
    }
}

/// At least `at_least` active pods to delete: duplicate and invalid indexes always, then the cheapest.
fn surplus(observed: &ObservedJob, active: &[Arc<Pod>], at_least: usize) -> Vec<Arc<Pod>> {
    let mut remove = Vec::new();
    let mut keep: Vec<Arc<Pod>> = Vec::new();
    if observed.is_indexed() {
        let mut by_index: BTreeMap<u32, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in active {
            match observed.valid_index(pod) {
                Some(index) => by_index.entry(index).or_default().push(Arc::clone(pod)),
                None => remove.push(Arc::clone(pod)),
            }
        }
        for mut pods in by_index.into_values() {
            pods.sort_by(|a, b| pod_facts::deletion_order(a, b));
            keep.extend(pods.pop());
            remove.extend(pods);
        }
    } else {
        keep = active.to_vec();
    }
    if remove.len() < at_least {
        keep.sort_by(|a, b| pod_facts::deletion_order(a, b));
        let more = at_least - remove.len();
        remove.extend(keep.into_iter().take(more));
    }
    remove
}

/// Pod to create for the job.
#[must_use]
pub fn make_pod(job: &Job, new: &NewPod, owner: OwnerReference) -> Pod {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = pod_facts::from_template(&template, namespace, owner);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    pod.metadata.generate_name = Some(format!("{name}-"));
    let Some(index) = new.index else { return pod };
    pod.metadata.generate_name = Some(generate_name(name, index));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(COMPLETION_INDEX.to_owned(), index.to_string());
    if let Some((counted, ignored)) = new.failures {
        annotations.insert(FAILURE_COUNT.to_owned(), counted.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURE_COUNT.to_owned(), ignored.to_string());
        }
    }
    pod.metadata.labels.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), index.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{name}-{index}"));
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        set_index_env(container);
    }
    pod
}

/// The server adds five characters; the index must fit into the limit of 63.
fn generate_name(job: &str, index: u32) -> String {
    let suffix = format!("-{index}-");
    let room = 58_usize.saturating_sub(suffix.len());
    let base: String = job.chars().take(room).collect();
    base + &suffix
}

fn set_index_env(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == "JOB_COMPLETION_INDEX") {
        return;
    }
    let field_path = format!("metadata.labels['{COMPLETION_INDEX}']");
    env.push(EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path, ..ObjectFieldSelector::default() }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    });
}

/// True if the job has finished: it no longer changes.
#[must_use]
pub fn is_finished(status: &JobStatus) -> bool {
    is_true(status, "Complete") || is_true(status, "Failed")
}

/// Uids as a set, for comparisons.
#[must_use]
pub fn uids(pods: &[Arc<Pod>]) -> BTreeSet<String> {
    pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect()
}
