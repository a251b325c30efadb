//! CronJobs.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};
use crate::state::object::{at, flag, text, time};
use crate::state::series::Series;
use jiff::Timestamp;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "cronjobs",
    kind: "CronJob",
    path: "/apis/batch/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("cronjob", NAME)],
    families: &[
        alpha("kube_cronjob_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_cronjob_labels", LABELS_HELP, Source::Labels),
        stable("kube_cronjob_info", "Schedule, concurrency policy and time zone.", Source::Each(info)),
        stable("kube_cronjob_created", CREATED_HELP, CREATED),
        stable("kube_cronjob_status_active", "Number of running jobs.", Source::Count("status.active")),
        stable(
            "kube_cronjob_status_last_schedule_time",
            "Unix time at which a job was last created.",
            Source::Time("status.lastScheduleTime"),
        ),
        stable(
            "kube_cronjob_status_last_successful_time",
            "Unix time at which a job last completed.",
            Source::Time("status.lastSuccessfulTime"),
        ),
        stable(
            "kube_cronjob_spec_suspend",
            "True if no further jobs are created.",
            Source::GivenFlag("spec.suspend"),
        ),
        stable(
            "kube_cronjob_spec_starting_deadline_seconds",
            "Seconds after its scheduled time within which a job may be created.",
            Source::Given("spec.startingDeadlineSeconds"),
        ),
        stable(
            "kube_cronjob_next_schedule_time",
            "Unix time of the first schedule after the last one, or after the creation if there was none. A time in \
             the past means delay.",
            Source::Each(next),
        ),
        alpha(
            "kube_cronjob_schedule_invalid",
            "1 if the schedule cannot be parsed in its time zone.",
            Source::Each(invalid),
        ),
        stable("kube_cronjob_metadata_resource_version", VERSION_HELP, Source::ResourceVersion),
        alpha(
            "kube_cronjob_spec_successful_job_history_limit",
            "Completed jobs to keep.",
            Source::Given("spec.successfulJobsHistoryLimit"),
        ),
        alpha(
            "kube_cronjob_spec_failed_job_history_limit",
            "Failed jobs to keep.",
            Source::Given("spec.failedJobsHistoryLimit"),
        ),
    ],
};

fn zone(job: &Value) -> Option<&str> {
    at(job, "spec.timeZone").and_then(Value::as_str)
}

fn info(job: &Value, series: &mut Series<'_>) {
    let labels = [
        ("schedule", text(job, "spec.schedule")),
        ("concurrency_policy", text(job, "spec.concurrencyPolicy")),
        ("timezone", zone(job).unwrap_or("local")),
    ];
    series.add(&labels, 1.0);
}

fn next(job: &Value, series: &mut Series<'_>) {
    let since = time(job, "status.lastScheduleTime").or_else(|| time(job, "metadata.creationTimestamp"));
    let Some(since) = since.filter(|_| !flag(job, "spec.suspend").unwrap_or(false)) else { return };
    if let Ok(Some(due)) = (series.settings.next_schedule)(text(job, "spec.schedule"), zone(job), since) {
        series.add(&[], due.as_second() as f64);
    }
}

fn invalid(job: &Value, series: &mut Series<'_>) {
    let schedule = text(job, "spec.schedule");
    if (series.settings.next_schedule)(schedule, zone(job), Timestamp::UNIX_EPOCH).is_err() {
        series.add(&[], 1.0);
    }
}
