//! Job.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{SelectableField, keep_status};
use crate::pod_spec::defaults;
use crate::validation::label_selector;
use crate::value::Fields;
use crate::workload::template::show_selector;
use crate::workload::{job_spec, job_status, job_update};
use crate::{Kind, MetadataCheck, Scope, workload};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::selector::LabelSelector;
use machinery::{Value, meta, names};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    validate: |job| validate(job, None),
    validate_update,
    validate_status_update: job_status::validate,
    warnings,
    counts_generation: true,
    orphan_dependents: true,
    orphan_warning: Some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    ),
    metadata_on_update: &[MetadataCheck::New],
    labels_from: Some("spec.template.metadata.labels"),
    selectable: Selectable::new(SELECTABLE, LabelError::Of("Job")),
    table: &crate::tables::batch::JOB,
    ..Kind::new("batch", "v1", "Job", "jobs", Scope::Namespaced)
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, NAMESPACE, field, number};
    &[NAME, NAMESPACE, field("status.successful", |job| number(job, "/status/succeeded"))]
};

pub(crate) const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";
pub(crate) const LEGACY_JOB_NAME_LABEL: &str = "job-name";
pub(crate) const CONTROLLER_UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
pub(crate) const LEGACY_CONTROLLER_UID_LABEL: &str = "controller-uid";

fn default(job: &mut Value) {
    workload::default_labels_from_template(job, "spec.template");
    let spec = job.child_mut("spec");
    if !spec.has("completions") && !spec.has("parallelism") {
        spec.set("completions", 1);
    }
    spec.default_to("parallelism", 1);
    let backoff_limit = if spec.has("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
    spec.default_to("backoffLimit", backoff_limit);
    spec.default_to("completionMode", "NonIndexed");
    spec.default_to("suspend", false);
    let replacement = if spec.has("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    spec.default_to("podReplacementPolicy", replacement);
    spec.default_to("manualSelector", false);
    default_job_template_spec(spec);
}

/// Defaults of a job and of a cron job's job template.
pub(crate) fn default_job_template_spec(spec: &mut Value) {
    if let Some(policy) = spec.field_mut("podFailurePolicy") {
        for rule in policy.items_mut("rules") {
            for pattern in rule.items_mut("onPodConditions") {
                pattern.default_if_zero("status", "True");
            }
        }
    }
    defaults::default_template(spec.child_mut("template"));
}

fn prepare_create(job: &mut Value) {
    if !job.field("spec").flag("manualSelector") {
        generate_selector(job);
    }
    workload::zero_status(job, &[]);
    workload::drop_disabled_template_fields(job, &Value::Null, "spec.template");
}

/// Labels the template with the job's name and uid and selects on the uid, so that no two jobs share pods. Existing
/// labels are retained; validation checks them.
fn generate_selector(job: &mut Value) {
    let name = meta::name(job).to_owned();
    let uid = meta::uid(job).to_owned();
    let spec = job.child_mut("spec");
    let labels = spec.child_mut("template").child_mut("metadata").child_mut("labels");
    for (label, value) in [
        (LEGACY_JOB_NAME_LABEL, &name),
        (JOB_NAME_LABEL, &name),
        (LEGACY_CONTROLLER_UID_LABEL, &uid),
        (CONTROLLER_UID_LABEL, &uid),
    ] {
        labels.default_to(label, value.as_str());
    }
    spec.child_mut("selector").child_mut("matchLabels").default_to(CONTROLLER_UID_LABEL, uid);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    workload::drop_disabled_template_fields(new, old, "spec.template");
}

fn validate(job: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    validate_generated_selector(job, old, &mut errors);
    validate_spec(job, old, &mut errors);
    let spec = job.field("spec");
    let completions = spec.int("completions");
    if spec.text("completionMode") == "Indexed" && completions > 0 {
        let name = meta::name(job);
        let last = format!("{name}-{}", completions - 1);
        if !names::dns_label(&last, false).is_empty() {
            let path = Path::new("metadata");
            let detail = format!("will not able to create pod with invalid DNS label: {last}");
            errors.push(FieldError::invalid_str(&path.child("name"), name, detail));
        }
    }
    errors
}

fn validate_spec(job: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let spec = job.field("spec");
    let path = Path::new("spec");
    let old_template = old.map(|old| old.at("spec.template"));
    job_spec::validate_job_spec(spec, old_template, &path, errors);
    let selector = spec.field("selector");
    let selector_path = path.child("selector");
    if selector.is_null() {
        errors.push(FieldError::required(&selector_path, ""));
    } else {
        let allow = old.is_some_and(|old| label_selector::has_invalid_label_value(old.at("spec.selector")));
        errors.extend(names::validate_label_selector(selector, allow, &selector_path));
    }
    let labels = spec.at("template.metadata.labels");
    if LabelSelector::from_object(Some(selector)).is_ok_and(|s| !s.matches(&labels.as_object())) {
        let template_path = path.child("template");
        let metadata = template_path.child("metadata");
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(&metadata.child("labels"), labels, detail));
    }
}

/// Requires an automatic selector to be the generated one, and the template to have its labels.
fn validate_generated_selector(job: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let spec = job.field("spec");
    let selector = spec.field("selector");
    if spec.flag("manualSelector") || selector.is_null() {
        return;
    }
    let (name, uid) = (meta::name(job), meta::uid(job));
    if uid.is_empty() {
        let path = Path::new("metadata");
        errors.push(FieldError::required(&path.child("uid"), ""));
    }
    let old_labels = |old: &Value| {
        let labels = old.at("spec.template.metadata.labels");
        labels.has(JOB_NAME_LABEL) && labels.has(CONTROLLER_UID_LABEL)
    };
    let mut expected = vec![(LEGACY_CONTROLLER_UID_LABEL, uid), (LEGACY_JOB_NAME_LABEL, name)];
    if old.is_none_or(old_labels) {
        expected.extend([(CONTROLLER_UID_LABEL, uid), (JOB_NAME_LABEL, name)]);
    }
    let path = Path::new("spec");
    let template_path = path.child("template");
    let metadata_path = template_path.child("metadata");
    let labels_path = metadata_path.child("labels");
    let labels = spec.at("template.metadata.labels");
    for (label, value) in &expected {
        let path = labels_path.key(label);
        let detail = format!("must be '{value}'");
        match labels.opt_text(label) {
            None => errors.push(FieldError::required(&path, detail)),
            Some(actual) if actual != *value => errors.push(FieldError::invalid(&path, labels, detail)),
            Some(_) => {}
        }
    }
    if LabelSelector::from_object(Some(selector)).is_ok_and(|s| !s.matches(&expected[..])) {
        let detail = "`selector` not auto-generated";
        errors.push(FieldError::invalid_shown(&path.child("selector"), show_selector(selector), detail));
    }
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new, Some(old));
    errors.extend(KIND.metadata_update_errors(new, old));
    validate_spec(new, Some(old), &mut errors);
    job_update::validate_changes(new, old, &mut errors);
    errors
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut found = workload::template_warnings(new, old, "spec.template", true);
    let changed = old.is_none_or(|old| old.field("spec") != new.field("spec"));
    if let Some(warning) = tracking_warning(new.field("spec"), "spec").filter(|_| changed) {
        found.insert(usize::from(found.first().is_some_and(|w| w.starts_with("metadata.name"))), warning);
    }
    found
}

/// Warns about an indexed job that may have too many completed indexes to track.
pub(crate) fn tracking_warning(spec: &Value, path: &str) -> Option<String> {
    let many = spec.int("completions") > 100_000 && spec.int("parallelism") > 10_000;
    (spec.text("completionMode") == "Indexed" && many).then(|| {
        format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        )
    })
}
