//! ReplicationController.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{Scale, ScaleSelector, SelectableField, keep_status};
use crate::pod_spec::checks::non_negative_field;
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::workload::template::{self, Wording};
use crate::{Kind, Scope, scale, workload};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    // Only the generated name is validated, not the prefix.
    validate_name: |name, prefix| if prefix { Vec::new() } else { names::dns_subdomain_in_bytes(name) },
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    validate: |controller| validate_spec(controller, None),
    validate_update: |new, old| validate_spec(new, Some(old)),
    validate_status_update: |new, _| super::replica_set::validate_status(new.field("status")),
    // An update warns about the old template, as in Kubernetes.
    warnings: |new, old| match old {
        None => workload::template_warnings(new, None, "spec.template", true),
        Some(old) => workload::template_warnings(old, Some(new), "spec.template", true),
    },
    counts_generation: true,
    orphan_dependents: true,
    scale: Some(Scale {
        spec_replicas: "spec.replicas",
        status_replicas: "status.replicas",
        selector: ScaleSelector::Computed(|controller| scale::labels_text(controller.at("spec.selector"))),
    }),
    storage_path: "controllers",
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::workloads::REPLICATION_CONTROLLER,
    ..Kind::new("", "v1", "ReplicationController", "replicationcontrollers", Scope::Namespaced)
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, NAMESPACE, field, number};
    &[NAME, NAMESPACE, field("status.replicas", |object| number(object, "/status/replicas"))]
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
    // The format of the selector's labels is not validated: they only have to match the template's.
    let labels = pods.at("metadata.labels");
    if selector.is_some_and(|selector| selector.iter().any(|(key, value)| labels.field(key) != value)) {
        errors.push(template::mismatch(labels, &template_path));
    }
    let old = old.map(|old| old.at("spec.template"));
    template::validate_pod_template(pods, old, &template_path, &mut errors);
    template::validate_runs_forever(pods, &WORDING, &template_path, &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn update_returns_warnings_of_old_template() {
        let controller = |secrets: Value| {
            let spec = json!({"containers": [], "imagePullSecrets": secrets});
            json!({"metadata": {"name": "x"}, "spec": {"template": {"spec": spec}}})
        };
        let (odd, sound) = (controller(json!([{}])), controller(json!([{"name": "a"}])));
        assert_eq!((KIND.warnings)(&odd, Some(&sound)), Vec::<String>::new());
        assert_eq!((KIND.warnings)(&sound, Some(&odd)).len(), 1);
        assert_eq!((KIND.warnings)(&odd, None).len(), 1);
    }

    #[test]
    fn selector_must_match_template_labels() {
        let template = json!({"metadata": {"labels": {"a": "b", "c": "d"}}});
        let spec = |selector: Value| json!({"spec": {"selector": selector, "template": template}});
        let mismatched = |selector: Value| {
            let errors = validate_spec(&spec(selector), None);
            errors.iter().any(|error| error.detail.starts_with("`selector` does not match"))
        };
        for (selector, expected) in [
            (json!({"a": "b"}), false),
            (json!({"a": "b", "c": "x"}), true),
            (json!({"a": "Not a label!"}), true),
            (json!({}), false),
        ] {
            assert_eq!(mismatched(selector.clone()), expected, "{selector}");
        }
    }
}
