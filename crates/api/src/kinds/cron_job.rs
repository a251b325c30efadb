//! CronJob.

use super::job;
use crate::kind::keep_status;
use crate::value::Fields;
use crate::{Kind, Scope, workload};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    counts_generation: true,
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
