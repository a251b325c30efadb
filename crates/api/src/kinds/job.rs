//! Job.

use crate::kind::keep_status;
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::{Kind, Scope, workload};
use machinery::{Value, meta};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    counts_generation: true,
    orphan_dependents: true,
    orphan_warning: Some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    ),
    ..Kind::new("batch", "v1", "Job", "jobs", Scope::Namespaced)
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

/// What is filled both in a job and in a cron job's template of one.
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

/// Labels the template with the job's name and uid and selects on the uid, so that no two jobs share pods.
/// Labels that are already there stay; validation looks at them.
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
