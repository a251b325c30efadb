//! Input of a reconciliation of a job, and queries on it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use base::clock::time_left;
use jiff::{SignedDuration, Timestamp};
use objects::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use objects::core::v1::Pod;
use objects::meta::v1::Time;

use super::backoff::{self, Backoff};
use super::indexes::Indexes;
use super::policies::{self, Verdict};
use crate::shared::pod_facts;

/// Finalizer that keeps a pod until its outcome is counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub const FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
pub const IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// A job, its pods, and state of this process beyond its caches.
#[derive(Clone, Debug)]
pub struct ObservedJob {
    pub job: Arc<Job>,
    pub pods: Vec<Arc<Pod>>,
    /// Pods whose finalizer this process has removed, though the cache still shows it.
    pub released: HashSet<String>,
    pub backoff: Backoff,
    /// True if the cache shows every creation and deletion of this process.
    pub settled: bool,
    pub now: Timestamp,
}

impl ObservedJob {
    #[must_use]
    pub fn spec(&self) -> JobSpec {
        self.job.spec.clone().unwrap_or_default()
    }

    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed")
    }

    /// Number of indexes of an indexed job.
    #[must_use]
    pub fn completions(&self) -> u32 {
        let completions = self.job.spec.as_ref().and_then(|spec| spec.completions).unwrap_or(0);
        u32::try_from(completions).unwrap_or(0)
    }

    #[must_use]
    pub fn per_index_limit(&self) -> Option<i32> {
        self.job.spec.as_ref()?.backoff_limit_per_index
    }

    /// True if pods are replaced only once they have terminated.
    #[must_use]
    pub fn replaces_only_failed(&self) -> bool {
        self.job.spec.as_ref().is_some_and(|spec| {
            spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
        })
    }

    /// True if the pod counts as failed: it has, or it is being deleted and the job does not wait for its end.
    #[must_use]
    pub fn counts_as_failed(&self, pod: &Pod) -> bool {
        pod_facts::is_failed(pod)
            || (!self.replaces_only_failed() && pod_facts::is_deleting(pod) && !pod_facts::is_succeeded(pod))
    }

    #[must_use]
    pub fn judge(&self, pod: &Pod) -> Verdict {
        policies::judge(self.job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref()), pod)
    }

    /// True if the finalizer exists and this process has not removed it.
    #[must_use]
    pub fn is_tracked(&self, pod: &Pod) -> bool {
        has_finalizer(pod) && !self.released.contains(uid(pod))
    }

    /// Completion index of the pod, if valid for the job.
    #[must_use]
    pub fn valid_index(&self, pod: &Pod) -> Option<u32> {
        completion_index(pod).filter(|index| *index < self.completions())
    }

    /// Tracked pods of valid index for which `matches` returns true, except those already in `counted`.
    pub fn fresh<'a>(&'a self, counted: &HashSet<String>, matches: impl Fn(&Pod) -> bool) -> Vec<&'a Pod> {
        let belongs = |pod: &Pod| !self.is_indexed() || self.valid_index(pod).is_some();
        let pods = self.pods.iter().map(AsRef::as_ref);
        pods.filter(|pod| self.is_tracked(pod) && !counted.contains(uid(pod)) && belongs(pod) && matches(pod))
            .collect()
    }

    /// Indexes recorded as succeeded, and those plus the currently succeeded pods.
    #[must_use]
    pub fn succeeded_indexes(&self) -> (Indexes, Indexes) {
        let recorded = self.job.status.as_ref().and_then(|status| status.completed_indexes.as_deref());
        let before = Indexes::parse(recorded.unwrap_or_default(), self.completions());
        let succeeded = self.pods.iter().filter(|pod| pod_facts::is_succeeded(pod) && has_finalizer(pod));
        let new: BTreeSet<_> = succeeded.filter_map(|pod| self.valid_index(pod)).collect();
        let after = before.union(&Indexes::from_set(&new));
        (before, after)
    }

    /// Indexes that have exhausted their own limit, or that the failure policy fails.
    #[must_use]
    pub fn failed_indexes(&self, limit: i32) -> Indexes {
        let recorded = self.job.status.as_ref().and_then(|status| status.failed_indexes.as_deref());
        let before = Indexes::parse(recorded.unwrap_or_default(), self.completions());
        let given_up = |pod: &Pod| {
            self.counts_as_failed(pod)
                && match self.judge(pod) {
                    Verdict::FailIndex => true,
                    verdict => verdict.counts() && annotation_number(pod, FAILURE_COUNT) >= limit,
                }
        };
        let failed = self.pods.iter().filter(|pod| has_finalizer(pod) && given_up(pod));
        let new: BTreeSet<_> = failed.filter_map(|pod| self.valid_index(pod)).collect();
        before.union(&Indexes::from_set(&new))
    }

    /// Per index that waits for a replacement, the failed pod whose failure count the replacement continues.
    #[must_use]
    pub fn awaiting_replacement(
        &self,
        active: &[Arc<Pod>],
        succeeded: &Indexes,
        failed: &Indexes,
    ) -> BTreeMap<u32, Arc<Pod>> {
        let active: BTreeSet<_> = active.iter().filter_map(|pod| completion_index(pod)).collect();
        let mut result: BTreeMap<u32, Arc<Pod>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| self.is_tracked(pod) && self.counts_as_failed(pod)) {
            let Some(index) = self.valid_index(pod) else { continue };
            if succeeded.contains(index) || failed.contains(index) || active.contains(&index) {
                continue;
            }
            let later = result.get(&index).is_none_or(|known| {
                all_failures(known) <= all_failures(pod)
                    && backoff::finished_at(pod) >= backoff::finished_at(known)
            });
            if later {
                result.insert(index, Arc::clone(pod));
            }
        }
        result
    }

    /// Time until the active deadline of the job.
    #[must_use]
    pub fn deadline_in(&self, start: Option<&Time>) -> Option<SignedDuration> {
        let spec = self.job.spec.as_ref()?;
        let allowed = SignedDuration::from_secs(spec.active_deadline_seconds?);
        if spec.suspend == Some(true) {
            return None;
        }
        Some(time_left(allowed, start?.0, self.now))
    }

    /// True if restarts of running pods have exhausted the limit; only for pods that restart on failure.
    #[must_use]
    pub fn restarts_exceed(&self, limit: i32) -> bool {
        let template = self.job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        if template.and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let running = self.pods.iter().filter(|pod| !pod_facts::is_finished(pod));
        let restarts: i64 = running
            .filter_map(|pod| pod.status.as_ref())
            .flat_map(|status| {
                status.container_statuses.iter().chain(&status.init_container_statuses).flatten()
            })
            .map(|container| i64::from(container.restart_count))
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= i64::from(limit) }
    }
}

#[must_use]
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

#[must_use]
pub fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

#[must_use]
pub fn completion_index(pod: &Pod) -> Option<u32> {
    pod.metadata.annotations.as_ref()?.get(COMPLETION_INDEX)?.parse().ok()
}

/// Number in an annotation; 0 if invalid.
#[must_use]
pub fn annotation_number(pod: &Pod, key: &str) -> i32 {
    let value = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    value.and_then(|value| value.parse::<u32>().ok()).and_then(|value| i32::try_from(value).ok()).unwrap_or(0)
}

/// Failures of the pod's index, ignored ones included.
#[must_use]
pub fn all_failures(pod: &Pod) -> i32 {
    annotation_number(pod, FAILURE_COUNT).saturating_add(annotation_number(pod, IGNORED_FAILURE_COUNT))
}

#[must_use]
pub fn condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// True if the condition is `True`.
#[must_use]
pub fn is_true(status: &JobStatus, kind: &str) -> bool {
    condition(status, kind).is_some_and(|condition| condition.status == "True")
}

#[must_use]
pub fn new_condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
        reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
        message: Some(message.to_owned()).filter(|message| !message.is_empty()),
    }
}

/// Sets the condition; returns false if unchanged, or if it would only be added as `False`.
pub fn ensure_condition(status: &mut JobStatus, wanted: JobCondition) -> bool {
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|condition| condition.type_ == wanted.type_) {
        Some(known) => {
            let same = known.status == wanted.status
                && known.reason == wanted.reason
                && known.message == wanted.message;
            if !same {
                *known = wanted;
            }
            !same
        }
        None if wanted.status == "False" => {
            if conditions.is_empty() {
                status.conditions = None;
            }
            false
        }
        None => {
            conditions.push(wanted);
            true
        }
    }
}
