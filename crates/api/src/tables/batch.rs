//! Jobs and cron jobs.

use super::cell::{
    NONE, UNSET, age, condition, container_cells, count, get, human_duration, int, label_selector_cell, name,
    seconds, since, text,
};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::{CellContext, Table};
use machinery::{Value, meta};

pub(crate) static JOB: Table = plain(
    &[
        NAME,
        column("Status", "string", "Status of the job."),
        column("Completions", "string", doc::JOB_STATUS_SUCCEEDED),
        column("Duration", "string", "Time required to complete the job."),
        AGE,
        wide("Containers", "string", "Names of each container in the template."),
        wide("Images", "string", "Images referenced by each container in the template."),
        wide("Selector", "string", doc::JOB_SPEC_SELECTOR),
    ],
    |job, context| {
        let [names, images] = container_cells(job, &["spec", "template", "spec", "containers"]);
        vec![
            name(job),
            status(job).into(),
            completions(job).into(),
            duration(job, context).into(),
            age(job, context),
            names,
            images,
            label_selector_cell(get(job, &["spec", "selector"])),
        ]
    },
);

fn status(job: &Value) -> &'static str {
    let holds = |kind| condition(job, kind).is_some_and(|found| text(found, &["status"]) == "True");
    if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if meta::deletion_timestamp(job).is_some() {
        "Terminating"
    } else if holds("Suspended") {
        "Suspended"
    } else if holds("FailureTarget") {
        "FailureTarget"
    } else if holds("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let succeeded = int(job, &["status", "succeeded"]);
    let parallelism = int(job, &["spec", "parallelism"]);
    match get(job, &["spec", "completions"]).and_then(Value::as_i64) {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    }
}

fn duration(job: &Value, context: CellContext) -> String {
    let Some(start) = seconds(text(job, &["status", "startTime"])) else { return String::new() };
    let end = seconds(text(job, &["status", "completionTime"])).unwrap_or(context.now);
    human_duration(end.saturating_sub(start))
}

pub(crate) static CRON_JOB: Table = plain(
    &[
        NAME,
        column("Schedule", "string", doc::CRON_JOB_SPEC_SCHEDULE),
        column("Timezone", "string", doc::CRON_JOB_SPEC_TIME_ZONE),
        column("Suspend", "boolean", doc::CRON_JOB_SPEC_SUSPEND),
        column("Active", "integer", doc::CRON_JOB_STATUS_ACTIVE),
        column("Last Schedule", "string", doc::CRON_JOB_STATUS_LAST_SCHEDULE_TIME),
        AGE,
        wide("Containers", "string", "Names of each container in the template."),
        wide("Images", "string", "Images referenced by each container in the template."),
        wide("Selector", "string", doc::JOB_SPEC_SELECTOR),
    ],
    |object, context| {
        let job = ["spec", "jobTemplate", "spec"];
        let [names, images] =
            container_cells(object, &[&job[..], &["template", "spec", "containers"]].concat());
        let suspend = match get(object, &["spec", "suspend"]).and_then(Value::as_bool) {
            Some(true) => "True",
            Some(false) => "False",
            None => UNSET,
        };
        let last = match text(object, &["status", "lastScheduleTime"]) {
            "" => NONE.to_owned(),
            moment => since(moment, context),
        };
        vec![
            name(object),
            text(object, &["spec", "schedule"]).into(),
            get(object, &["spec", "timeZone"]).and_then(Value::as_str).unwrap_or(NONE).into(),
            suspend.into(),
            count(object, &["status", "active"]).into(),
            last.into(),
            age(object, context),
            names,
            images,
            label_selector_cell(get(object, &[&job[..], &["selector"]].concat())),
        ]
    },
);
