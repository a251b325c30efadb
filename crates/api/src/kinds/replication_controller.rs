//! ReplicationController.

use crate::kind::{Scale, keep_status};
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::{Kind, Scope, scale, workload};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    counts_generation: true,
    orphan_dependents: true,
    scale: Some(Scale {
        spec_replicas: "spec.replicas",
        status_replicas: "status.replicas",
        selector: |controller| scale::labels_text(controller.at("spec.selector")),
    }),
    ..Kind::new("", "v1", "ReplicationController", "replicationcontrollers", Scope::Namespaced)
};

fn default(controller: &mut Value) {
    workload::default_labels_from_template(controller, "spec.template");
    let spec = controller.child_mut("spec");
    if !spec.entries("selector").is_some_and(|selector| !selector.is_empty()) {
        let labels = spec.at("template.metadata.labels").clone();
        if labels.is_object() {
            spec.set("selector", labels);
        }
    }
    spec.default_to("replicas", 1);
    if let Some(template) = spec.field_mut("template") {
        defaults::default_template(template);
    }
}

fn prepare_create(controller: &mut Value) {
    workload::zero_status(controller, &["replicas"]);
    workload::drop_disabled_template_fields(controller, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    workload::drop_disabled_template_fields(new, old, "spec.template");
}
