//! PodDisruptionBudget.

use crate::kind::keep_status;
use crate::pod_spec::checks::one_of;
use crate::pod_spec::layout;
use crate::value::Fields;
use crate::workload::rolling_update::{validate_at_most_all, validate_int_or_percent};
use crate::{Kind, Scope, workload};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    prepare_create,
    prepare_update: keep_status,
    prepare_status_update: workload::keep_spec,
    validate: |budget| validate_spec(budget, false),
    validate_update,
    validate_status_update,
    metadata_last: true,
    counts_generation: true,
    unconditional_update: false,
    table: &crate::tables::policy::POD_DISRUPTION_BUDGET,
    ..Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", Scope::Namespaced)
};

fn prepare_create(budget: &mut Value) {
    workload::zero_status(
        budget,
        &["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"],
    );
}

fn validate_spec(budget: &Value, allow_bad_values: bool) -> ErrorList {
    let mut errors = Vec::new();
    let spec = budget.field("spec");
    let path = Path::new("spec");
    if spec.has("minAvailable") && spec.has("maxUnavailable") {
        let shown = layout::internal_json("PodDisruptionBudgetSpec", spec);
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid_shown(&path, shown, detail));
    }
    for name in ["minAvailable", "maxUnavailable"] {
        if spec.has(name) {
            let path = path.child(name);
            validate_int_or_percent(spec.field(name), &path, &mut errors);
            validate_at_most_all(spec.field(name), &path, &mut errors);
        }
    }
    if spec.has("selector") {
        let path = path.child("selector");
        errors.extend(names::validate_label_selector(spec.field("selector"), allow_bad_values, &path));
    }
    if let Some(policy) = spec.opt_text("unhealthyPodEvictionPolicy") {
        let supported = ["AlwaysAllow", "IfHealthyBudget"];
        one_of(policy, &supported, &path.child("unhealthyPodEvictionPolicy"), &mut errors);
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let selector = old.at("spec.selector");
    let was_bad =
        !selector.is_null() && !names::validate_label_selector(selector, false, &Path::ROOT).is_empty();
    validate_spec(new, was_bad)
}

fn validate_status_update(new: &Value, _old: &Value) -> ErrorList {
    let path = Path::new("status");
    let status = new.field("status");
    let mut errors = names::validate_conditions(status.items("conditions"), &path.child("conditions"));
    let counters = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    workload::status::validate_counters(status, &counters, &path, &mut errors);
    errors
}
