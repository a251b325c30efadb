//! CronJob.

use super::job;
use crate::kind::keep_status;
use crate::pod_spec::checks::{non_negative_field, required_one_of};
use crate::value::Fields;
use crate::workload::template::show_selector;
use crate::workload::{cron, job_spec};
use crate::{Kind, Scope, workload};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    validate,
    validate_update: |new, old| validate_spec(new, Some(old)),
    warnings,
    counts_generation: true,
    metadata_on_status_update: &[],
    table: &crate::tables::batch::CRON_JOB,
    ..Kind::new("batch", "v1", "CronJob", "cronjobs", Scope::Namespaced)
};

const TEMPLATE: &str = "spec.jobTemplate.spec.template";

fn default(cron_job: &mut Value) {
    let spec = cron_job.child_mut("spec");
    spec.default_if_zero("concurrencyPolicy", "Allow");
    spec.default_to("suspend", false);
    spec.default_to("successfulJobsHistoryLimit", 3);
    spec.default_to("failedJobsHistoryLimit", 1);
    job::default_job_template_spec(spec.child_mut("jobTemplate").child_mut("spec"));
}

fn prepare_create(cron_job: &mut Value) {
    workload::zero_status(cron_job, &[]);
    workload::drop_disabled_template_fields(cron_job, &Value::Null, TEMPLATE);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    workload::drop_disabled_template_fields(new, old, TEMPLATE);
}

/// Jobs add eleven characters to the name, and their pods need names too.
const MAX_NAME: usize = 52;

fn validate(cron_job: &Value) -> ErrorList {
    let mut errors = validate_spec(cron_job, None);
    let name = meta::name(cron_job);
    if name.len() > MAX_NAME {
        let path = Path::new("metadata");
        let detail = "must be no more than 52 characters";
        errors.push(FieldError::invalid_str(&path.child("name"), name, detail));
    }
    errors
}

fn validate_spec(cron_job: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    let spec = cron_job.field("spec");
    let path = Path::new("spec");
    validate_schedule(spec, old, &path.child("schedule"), &mut errors);
    non_negative_field(spec, "startingDeadlineSeconds", &path, &mut errors);
    let zone = spec.opt_text("timeZone");
    if let Some(zone) = zone.filter(|_| old.is_none_or(|old| old.field("spec").opt_text("timeZone") != zone))
    {
        let path = path.child("timeZone");
        let problems = cron::time_zone_problems(zone);
        errors.extend(problems.into_iter().map(|problem| FieldError::invalid_str(&path, zone, problem)));
    }
    let policies = ["Allow", "Forbid", "Replace"];
    required_one_of(spec.text("concurrencyPolicy"), &policies, &path.child("concurrencyPolicy"), &mut errors);
    let job_template_path = path.child("jobTemplate");
    let job_path = job_template_path.child("spec");
    let job_spec = spec.at("jobTemplate.spec");
    let old_template = old.map(|old| old.at(TEMPLATE));
    job_spec::validate_job_spec(job_spec, old_template, &job_path, &mut errors);
    if job_spec.has("selector") {
        let shown = show_selector(job_spec.field("selector"));
        let detail = "`selector` will be auto-generated";
        errors.push(FieldError::invalid_shown(&job_path.child("selector"), shown, detail));
    }
    if job_spec.flag("manualSelector") {
        let path = job_path.child("manualSelector");
        errors.push(FieldError::not_supported(&path, &Value::from(true), &["nil", "false"]));
    }
    non_negative_field(spec, "successfulJobsHistoryLimit", &path, &mut errors);
    non_negative_field(spec, "failedJobsHistoryLimit", &path, &mut errors);
    errors
}

fn validate_schedule(spec: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut ErrorList) {
    let schedule = spec.text("schedule");
    if schedule.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if let Some(problem) = cron::schedule_problem(schedule) {
        errors.push(FieldError::invalid_str(path, schedule, problem));
    }
    let may_name_zone = old.is_some_and(|old| old.field("spec").text("schedule").contains("TZ"));
    let detail = if !schedule.contains("TZ") {
        return;
    } else if !may_name_zone {
        "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    } else if spec.has("timeZone") {
        "cannot use both timeZone field and TZ or CRON_TZ in schedule"
    } else {
        return;
    };
    errors.push(FieldError::invalid_str(path, schedule, detail));
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut found = workload::template_warnings(new, old, TEMPLATE, true);
    let changed = old.is_none_or(|old| old.field("spec") != new.field("spec"));
    let job_spec = new.at("spec.jobTemplate.spec");
    if let Some(warning) = job::tracking_warning(job_spec, "spec.jobTemplate.spec").filter(|_| changed) {
        found.insert(usize::from(found.first().is_some_and(|w| w.starts_with("metadata.name"))), warning);
    }
    if old.is_some() && new.field("spec").text("schedule").contains("TZ") {
        let warning = "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";
        found.push(warning.to_owned());
    }
    found
}
