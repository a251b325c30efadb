//! Deployment.

use crate::kind::{Scale, keep_status};
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::{Kind, Scope, scale, workload};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update,
    counts_generation: true,
    scale: Some(Scale {
        spec_replicas: "spec.replicas",
        status_replicas: "status.replicas",
        selector: |deployment| scale::selector_text(deployment.at("spec.selector")),
    }),
    ..Kind::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced)
};

/// Asks the controller of long ago to roll back; an empty one means nothing and is dropped.
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
    // Unlike other kinds, a change of annotations counts too: the controller copies them to its replica sets.
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
