//! Metrics of jobs and their pods.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use objects::batch::v1::{Job, JobCondition, JobStatus};
use objects::core::v1::Pod;
use runtime::Change;

use super::indexes::Indexes;
use super::observed::{ObservedJob, has_finalizer, uid};
use super::plan::Decision;
use super::policies;
use crate::shared::metrics::ControllerMetrics;
use crate::shared::pod_facts;

/// Completion mode of a job as a label.
pub fn mode(job: &Job) -> &'static str {
    match job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) {
        Some("Indexed") => "Indexed",
        _ => "NonIndexed",
    }
}

/// Counts pods that gain or lose the finalizer after their end.
pub fn tracked_pod(metrics: &ControllerMetrics, change: &Change<Pod>) {
    let holds = |pod: &Pod| pod_facts::is_finished(pod) && has_finalizer(pod);
    let (was, is) = match change {
        Change::Added(pod) => (false, holds(pod)),
        Change::Updated { old, new } => (holds(old), holds(new)),
        Change::Deleted(pod) => (holds(pod), false),
    };
    if was != is {
        let event = if is { "add" } else { "delete" };
        metrics.jobs.tracked_pods.with_label_values(&[event]).inc();
    }
}

/// Counts jobs of other controllers.
pub fn added_job(metrics: &ControllerMetrics, change: &Change<Job>) {
    let Change::Added(job) = change else { return };
    let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    if let Some(manager) = manager.filter(|manager| *manager != "kubernetes.io/job-controller") {
        metrics.jobs.external.with_label_values(&[metrics.names.bound(manager)]).inc();
    }
}

/// Records a reconciliation.
pub fn sync(
    metrics: &ControllerMetrics,
    mode: &str,
    observed: &ObservedJob,
    decision: &Decision,
    is_ok: bool,
    took: Duration,
) {
    let action = match decision {
        Decision { tended: false, .. } => "reconciling",
        _ if observed.spec().suspend == Some(true) || !decision.delete.is_empty() => "pods_deleted",
        _ if !decision.create.is_empty() => "pods_created",
        _ => "tracking",
    };
    let labels = [mode, if is_ok { "success" } else { "error" }, action];
    metrics.jobs.syncs.with_label_values(&labels).inc();
    metrics.jobs.sync_seconds.with_label_values(&labels).observe(took.as_secs_f64());
}

/// Records created pods and failed creations.
pub fn created_pods(
    metrics: &ControllerMetrics,
    observed: &ObservedJob,
    decision: &Decision,
    created: usize,
    failed: usize,
) {
    let failures = decision.status.failed.unwrap_or(0) > 0;
    let terminating = observed.pods.iter().any(|pod| pod_facts::is_terminating(pod));
    let policy = observed.spec().pod_replacement_policy;
    let reason = match policy.as_deref() {
        Some("Failed") if failures => "recreate_failed",
        _ if failures || terminating => "recreate_terminating_or_failed",
        _ => "new",
    };
    for (status, count) in [("succeeded", created), ("failed", failed)] {
        if count > 0 {
            metrics.jobs.pods_created.with_label_values(&[reason, status]).inc_by(count as u64);
        }
    }
}

/// Records the pods and indexes by which a written status differs from the one before.
pub fn counted_pods(
    metrics: &ControllerMetrics,
    observed: &ObservedJob,
    before: &JobStatus,
    after: &JobStatus,
) {
    let more = |before: i64, after: i64| u64::try_from(after.saturating_sub(before)).unwrap_or(0);
    let number = |value: Option<i32>| i64::from(value.unwrap_or(0));
    let succeeded = if observed.is_indexed() {
        let count = |text: &Option<String>| {
            Indexes::parse(text.as_deref().unwrap_or_default(), observed.completions()).len() as i64
        };
        let limit = if observed.per_index_limit().is_some() { "perIndex" } else { "global" };
        let succeeded = more(count(&before.completed_indexes), count(&after.completed_indexes));
        let failed = more(count(&before.failed_indexes), count(&after.failed_indexes));
        metrics.jobs.indexes_finished.with_label_values(&["succeeded", limit]).inc_by(succeeded);
        if failed > 0 {
            metrics.jobs.indexes_finished.with_label_values(&["failed", limit]).inc_by(failed);
        }
        succeeded
    } else {
        more(number(before.succeeded), number(after.succeeded))
    };
    let failed = more(number(before.failed), number(after.failed));
    let mode = mode(&observed.job);
    metrics.jobs.pods_finished.with_label_values(&[mode, "succeeded"]).inc_by(succeeded);
    metrics.jobs.pods_finished.with_label_values(&[mode, "failed"]).inc_by(failed);
}

/// Records the actions of the failure policy on pods that are counted now.
pub fn judged_pods(
    metrics: &ControllerMetrics,
    observed: &ObservedJob,
    before: &JobStatus,
    counted: &[Arc<Pod>],
) {
    let spec = observed.job.spec.as_ref();
    let Some(policy) = spec.and_then(|spec| spec.pod_failure_policy.as_ref()) else { return };
    let uncounted = before.uncounted_terminated_pods.as_ref();
    let known: HashSet<&String> = uncounted.iter().flat_map(|pods| pods.failed.iter().flatten()).collect();
    let is_new = |pod: &Arc<Pod>| !known.iter().any(|known| *known == uid(pod));
    for pod in counted.iter().filter(|pod| observed.counts_as_failed(pod) && is_new(pod)) {
        if let Some(action) = policies::action(policy, pod) {
            metrics.jobs.policy_actions.with_label_values(&[action]).inc();
        }
    }
}

/// Records the end of a job.
pub fn finished(metrics: &ControllerMetrics, job: &Job, condition: &JobCondition) {
    let result = if condition.type_ == "Complete" { "succeeded" } else { "failed" };
    let reason = match condition.reason.as_deref().unwrap_or_default() {
        reason @ ("BackoffLimitExceeded"
        | "DeadlineExceeded"
        | "PodFailurePolicy"
        | "FailedIndexes"
        | "MaxFailedIndexesExceeded"
        | "SuccessPolicy"
        | "CompletionsReached"
        | "") => reason,
        _ => "other",
    };
    metrics.jobs.finished.with_label_values(&[mode(job), result, reason]).inc();
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;
    use base::metrics::Metrics;
    use serde_json::json;

    #[test]
    fn finished_pods_and_jobs_are_counted_by_mode_and_result() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = ControllerMetrics::new(&registry).expect("registered");
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": "j", "namespace": "ns"},
            "spec": {"completionMode": "Indexed", "completions": 5, "template": {}, "backoffLimitPerIndex": 1},
        }))
        .expect("a job");
        let observed = ObservedJob {
            job: Arc::new(job.clone()),
            pods: Vec::new(),
            released: HashSet::new(),
            backoff: super::super::backoff::Backoff::default(),
            settled: true,
            now: Clock::system().now(),
        };
        let status = |completed: &str, failed: &str, count| JobStatus {
            completed_indexes: Some(completed.to_owned()),
            failed_indexes: Some(failed.to_owned()),
            failed: Some(count),
            ..JobStatus::default()
        };
        counted_pods(&metrics, &observed, &status("0", "", 1), &status("0-2", "4", 3));
        let condition =
            super::super::observed::new_condition("Failed", "True", "of a client", "", Clock::system().now());
        finished(&metrics, &job, &condition);
        let text = String::from_utf8(registry.encode().expect("encoded")).expect("text");
        for line in [
            r#"job_controller_job_pods_finished_total{completion_mode="Indexed",result="succeeded"} 2"#,
            r#"job_controller_job_pods_finished_total{completion_mode="Indexed",result="failed"} 2"#,
            r#"job_controller_job_finished_indexes_total{backoffLimit="perIndex",status="failed"} 1"#,
            r#"job_controller_jobs_finished_total{completion_mode="Indexed",reason="other",result="failed"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
