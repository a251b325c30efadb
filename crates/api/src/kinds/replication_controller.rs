//! ReplicationController.

use crate::kind::{Scale, keep_status};
use crate::pod_spec::checks::non_negative_field;
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::workload::template::{self, Wording};
use crate::{Kind, Scope, scale, workload};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    validate_name: |name, prefix| match prefix {
        true => names::dns_subdomain(name, true),
        false => names::dns_subdomain_in_bytes(name),
    },
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    validate: |controller| validate_spec(controller, None),
    validate_update: |new, old| validate_spec(new, Some(old)),
    validate_status_update: |new, _| super::replica_set::validate_status(new.field("status")),
    warnings: |new, old| workload::template_warnings(new, old, "spec.template", true),
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
    if spec.entries("selector").is_none_or(|selector| selector.is_empty()) {
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

const WORDING: Wording = Wording { empty_selector: "", deadline: "ReplicationController" };

fn validate_spec(controller: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    let spec = controller.field("spec");
    let path = Path::new("spec");
    non_negative_field(spec, "minReadySeconds", &path, &mut errors);
    let selector = spec.entries("selector").filter(|selector| !selector.is_empty());
    if selector.is_none() {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    non_negative_field(spec, "replicas", &path, &mut errors);
    let pods = spec.field("template");
    let template_path = path.child("template");
    if pods.is_null() {
        errors.push(FieldError::required(&template_path, ""));
        return errors;
    }
    let as_object = json!({"matchLabels": spec.field("selector")});
    template::validate_match(&as_object, pods, &template_path, &mut errors);
    let old = old.map(|old| old.at("spec.template"));
    template::validate_pod_template(pods, old, &template_path, &mut errors);
    template::validate_runs_forever(pods, &WORDING, &template_path, &mut errors);
    errors
}
