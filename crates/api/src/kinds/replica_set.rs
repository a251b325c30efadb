//! ReplicaSet.

use crate::kind::{Scale, ScaleSelector, keep_status};
use crate::pod_spec::checks::non_negative_field;
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::workload::template;
use crate::{Kind, Scope, scale, workload};
use machinery::Value;
use machinery::field::{ErrorList, Path};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    validate: |set| validate_spec(set, None),
    validate_update,
    validate_status_update: |new, _| validate_status(new.field("status")),
    warnings: |new, old| workload::template_warnings(new, old, "spec.template", true),
    counts_generation: true,
    scale: Some(Scale {
        spec_replicas: "spec.replicas",
        status_replicas: "status.replicas",
        selector: ScaleSelector::Computed(|set| scale::selector_text(set.at("spec.selector"))),
    }),
    table: &crate::tables::workloads::REPLICA_SET,
    ..Kind::new("apps", "v1", "ReplicaSet", "replicasets", Scope::Namespaced)
};

fn default(set: &mut Value) {
    let spec = set.child_mut("spec");
    spec.default_to("replicas", 1);
    defaults::default_template(spec.child_mut("template"));
}

fn prepare_create(set: &mut Value) {
    workload::zero_status(set, &["replicas"]);
    workload::drop_disabled_template_fields(set, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    workload::drop_disabled_template_fields(new, old, "spec.template");
}

fn validate_spec(set: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    let spec = set.field("spec");
    let path = Path::new("spec");
    non_negative_field(spec, "replicas", &path, &mut errors);
    non_negative_field(spec, "minReadySeconds", &path, &mut errors);
    template::validate_replicated(set, old, &mut errors);
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate_spec(new, Some(old));
    template::validate_selector_unchanged(new, old, &mut errors);
    errors
}

/// Also for the status of a replication controller.
pub(crate) fn validate_status(status: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let counters = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    workload::status::validate_counters(status, &counters, &path, &mut errors);
    let limited = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    workload::status::validate_at_most_replicas(status, &limited, &path, &mut errors);
    workload::status::validate_available(status, "cannot be greater than readyReplicas", &path, &mut errors);
    errors
}
