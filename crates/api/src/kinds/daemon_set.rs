//! DaemonSet.

use crate::kind::keep_status;
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::{Kind, Scope, workload};
use machinery::{Value, meta};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update,
    counts_generation: true,
    ..Kind::new("apps", "v1", "DaemonSet", "daemonsets", Scope::Namespaced)
};

/// How often the template has changed, kept where old controllers look for it.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn default(set: &mut Value) {
    let spec = set.child_mut("spec");
    let strategy = spec.child_mut("updateStrategy");
    strategy.default_if_zero("type", "RollingUpdate");
    if strategy.text("type") == "RollingUpdate" {
        let rolling = strategy.child_mut("rollingUpdate");
        rolling.default_to("maxUnavailable", 1);
        rolling.default_to("maxSurge", 0);
    }
    spec.default_to("revisionHistoryLimit", 10);
    defaults::default_template(spec.child_mut("template"));
}

/// The template generation that the annotation says; 0 when it says none.
pub(crate) fn template_generation(set: &Value) -> i64 {
    meta::annotation(set, TEMPLATE_GENERATION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn set_template_generation(set: &mut Value, generation: i64) {
    set.child_mut("metadata").child_mut("annotations").set(TEMPLATE_GENERATION, generation.to_string());
}

fn prepare_create(set: &mut Value) {
    workload::zero_status(
        set,
        &["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"],
    );
    let generation = template_generation(set).max(1);
    set_template_generation(set, generation);
    workload::drop_disabled_template_fields(set, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    workload::drop_disabled_template_fields(new, old, "spec.template");
    keep_status(new, old);
    let changed = new.at("spec.template") != old.at("spec.template");
    set_template_generation(new, template_generation(old) + i64::from(changed));
}

fn prepare_status_update(new: &mut Value, old: &Value) {
    workload::keep_spec(new, old);
    set_template_generation(new, template_generation(old));
}
