//! Jobs.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};
use crate::state::object::{list, number, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "jobs",
    kind: "Job",
    path: "/apis/batch/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("job_name", NAME)],
    families: &[
        alpha("kube_job_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_job_labels", LABELS_HELP, Source::Labels),
        stable("kube_job_info", "A Job exists.", Source::One),
        stable("kube_job_created", CREATED_HELP, CREATED),
        stable(
            "kube_job_spec_parallelism",
            "Pods that the job may run at a time.",
            Source::Given("spec.parallelism"),
        ),
        stable(
            "kube_job_spec_completions",
            "Pods that must succeed for the job to complete.",
            Source::Given("spec.completions"),
        ),
        stable(
            "kube_job_spec_active_deadline_seconds",
            "Seconds after its start at which the job is terminated.",
            Source::Given("spec.activeDeadlineSeconds"),
        ),
        stable("kube_job_status_succeeded", "Number of succeeded pods.", Source::Number("status.succeeded")),
        stable(
            "kube_job_status_failed",
            "Number of failed pods, and the reason of the job's failure.",
            Source::Each(failed),
        ),
        stable("kube_job_status_active", "Number of running pods.", Source::Number("status.active")),
        alpha("kube_job_status_ready", "Number of ready pods.", Source::Number("status.ready")),
        stable("kube_job_complete", "Status of the condition Complete.", Source::Each(is_complete)),
        stable("kube_job_failed", "Status of the condition Failed.", Source::Each(is_failed)),
        stable("kube_job_status_start_time", "Unix time of the start.", Source::Time("status.startTime")),
        stable(
            "kube_job_status_completion_time",
            "Unix time of the completion.",
            Source::Time("status.completionTime"),
        ),
        alpha("kube_job_status_suspended", "True if the job is suspended.", Source::Each(suspended)),
        stable("kube_job_owner", OWNER_HELP, Source::Owners),
    ],
};

const REASONS: [&str; 3] = ["BackoffLimitExceeded", "DeadlineExceeded", "Evicted"];

fn conditions<'a>(job: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    list(job, "status.conditions").iter().filter(move |condition| text(condition, "type") == kind)
}

fn failed(job: &Value, series: &mut Series<'_>) {
    let failed = number(job, "status.failed").unwrap_or(0.0);
    if failed == 0.0 {
        return series.add(&[], failed);
    }
    let mut is_known = false;
    for condition in conditions(job, "Failed") {
        for reason in REASONS {
            let is_this = text(condition, "reason") == reason;
            is_known |= is_this;
            series.add(&[("reason", reason)], is_this.into());
        }
    }
    if !is_known {
        series.add(&[("reason", "")], failed);
    }
}

fn is_complete(job: &Value, series: &mut Series<'_>) {
    for condition in conditions(job, "Complete") {
        series.add_statuses(&[], "condition", text(condition, "status"));
    }
}

fn is_failed(job: &Value, series: &mut Series<'_>) {
    for condition in conditions(job, "Failed") {
        series.add_statuses(&[], "condition", text(condition, "status"));
    }
}

fn suspended(job: &Value, series: &mut Series<'_>) {
    for condition in conditions(job, "Suspended") {
        series.add(&[], (text(condition, "status") == "True").into());
    }
}
