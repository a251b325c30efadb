//! Deployment.

use crate::kind::{Scale, ScaleSelector, keep_status};
use crate::pod_spec::checks::{non_negative, non_negative_field};
use crate::pod_spec::defaults;
use crate::pod_spec::layout;
use crate::value::Fields;
use crate::workload::rolling_update::{amount, validate_at_most_all, validate_int_or_percent};
use crate::workload::template;
use crate::{Kind, Scope, scale, workload};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update,
    validate: |deployment| validate_spec(deployment, None),
    validate_update,
    validate_status_update,
    warnings: |new, old| workload::template_warnings(new, old, "spec.template", true),
    counts_generation: true,
    scale: Some(Scale {
        spec_replicas: "spec.replicas",
        status_replicas: "status.replicas",
        selector: ScaleSelector::Computed(|deployment| scale::selector_text(deployment.at("spec.selector"))),
    }),
    reset_fields: &[("", &[&["status"]]), ("status", &[&["spec"], &["metadata", "labels"]])],
    table: &crate::tables::workloads::DEPLOYMENT,
    ..Kind::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced)
};

/// Rollback request of extensions/v1beta1; an empty one is dropped.
const ROLLBACK_ANNOTATION: &str = "deprecated.deployment.rollback.to";

fn default(deployment: &mut Value) {
    drop_empty_rollback(deployment);
    let spec = deployment.child_mut("spec");
    spec.default_to("replicas", 1);
    let strategy = spec.child_mut("strategy");
    strategy.default_if_zero("type", "RollingUpdate");
    if strategy.text("type") == "RollingUpdate" {
        let rolling = strategy.child_mut("rollingUpdate");
        rolling.default_to("maxUnavailable", "25%");
        rolling.default_to("maxSurge", "25%");
    }
    spec.default_to("revisionHistoryLimit", 10);
    spec.default_to("progressDeadlineSeconds", 600);
    defaults::default_template(spec.child_mut("template"));
}

fn drop_empty_rollback(deployment: &mut Value) {
    let Some(annotations) = deployment.at_mut("metadata.annotations") else { return };
    if annotations.opt_text(ROLLBACK_ANNOTATION) == Some("") {
        annotations.unset(ROLLBACK_ANNOTATION);
    }
}

fn prepare_create(deployment: &mut Value) {
    workload::zero_status(deployment, &[]);
    workload::drop_disabled_template_fields(deployment, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    workload::drop_disabled_template_fields(new, old, "spec.template");
    // Unlike for other kinds, a change of annotations counts too: the controller copies them to its replica sets.
    let annotations =
        |object: &Value| machinery::meta::annotations(object).filter(|a| !a.is_empty()).cloned();
    if annotations(new) != annotations(old) {
        new.child_mut("metadata").set("generation", machinery::meta::generation(old) + 1);
    }
}

fn prepare_status_update(new: &mut Value, old: &Value) {
    workload::keep_spec(new, old);
    workload::keep_metadata(new, old, "labels");
}

fn validate_spec(deployment: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    let spec = deployment.field("spec");
    let path = Path::new("spec");
    non_negative_field(spec, "replicas", &path, &mut errors);
    template::validate_replicated(deployment, old, &mut errors);
    validate_strategy(spec.field("strategy"), &path.child("strategy"), &mut errors);
    non_negative_field(spec, "minReadySeconds", &path, &mut errors);
    non_negative_field(spec, "revisionHistoryLimit", &path, &mut errors);
    if let Some(deadline) = spec.opt_int("progressDeadlineSeconds") {
        let path = path.child("progressDeadlineSeconds");
        non_negative(deadline, &path, &mut errors);
        if deadline <= spec.int("minReadySeconds") {
            let detail = "must be greater than minReadySeconds";
            errors.push(FieldError::invalid(&path, &Value::from(deadline), detail));
        }
    }
    errors
}

fn validate_strategy(strategy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rolling = strategy.field("rollingUpdate");
    let rolling_path = path.child("rollingUpdate");
    match strategy.text("type") {
        "Recreate" => {
            if !rolling.is_null() {
                let detail = "may not be specified when strategy `type` is 'Recreate'";
                errors.push(FieldError::forbidden(&rolling_path, detail));
            }
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.field("maxUnavailable"), rolling.field("maxSurge"));
            let unavailable_path = rolling_path.child("maxUnavailable");
            validate_int_or_percent(unavailable, &unavailable_path, errors);
            validate_int_or_percent(surge, &rolling_path.child("maxSurge"), errors);
            if amount(unavailable) == 0 && amount(surge) == 0 {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(&unavailable_path, unavailable, detail));
            }
            validate_at_most_all(unavailable, &unavailable_path, errors);
        }
        _ => {
            let shown = layout::internal_json("DeploymentStrategy", strategy);
            let error = FieldError::not_supported(path, &Value::Null, &["Recreate", "RollingUpdate"]);
            errors.push(FieldError { value: Some(shown), ..error });
        }
    }
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate_spec(new, Some(old));
    template::validate_selector_unchanged(new, old, &mut errors);
    errors
}

fn validate_status_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let status = new.field("status");
    let counters = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    workload::status::validate_counters(status, &counters, &path, &mut errors);
    let limited = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    workload::status::validate_at_most_replicas(status, &limited, &path, &mut errors);
    workload::status::validate_available(status, "cannot be greater than readyReplicas", &path, &mut errors);
    workload::status::validate_collisions(status, old.field("status"), &path, &mut errors);
    errors
}
