//! IngressClass.

use crate::validation::checks::{dns_label, dns_subdomain, immutable, invalid_each, one_of};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    default,
    validate,
    validate_update: |new, old| {
        let path = Path::new("spec");
        let controller = |class: &Value| Value::from(class.field("spec").text("controller"));
        let mut errors = immutable(&path.child("controller"), &controller(new), &controller(old));
        errors.extend(KIND.metadata_errors(new));
        errors.extend(validate(new));
        errors
    },
    counts_generation: true,
    table: &crate::tables::networking::INGRESS_CLASS,
    ..Kind::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses", Scope::Cluster)
};

fn default(class: &mut Value) {
    if let Some(parameters) = class.at_mut("spec.parameters") {
        parameters.default_to("scope", "Cluster");
    }
}

const MAX_CONTROLLER: usize = 250;

fn validate(class: &Value) -> ErrorList {
    let spec = class.field("spec");
    let path = Path::new("spec");
    let controller = spec.text("controller");
    let controller_path = path.child("controller");
    let mut errors = Vec::new();
    if controller.len() > MAX_CONTROLLER {
        errors.push(FieldError::too_long(&controller_path, MAX_CONTROLLER));
    }
    errors.extend(names::domain_prefixed_path(&controller_path, controller));
    let parameters = spec.field("parameters");
    if !parameters.is_null() {
        errors.extend(validate_parameters(parameters, &path.child("parameters")));
    }
    errors
}

fn validate_parameters(parameters: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = validate_reference(parameters, path);
    let namespace_path = path.child("namespace");
    let namespace = parameters.opt_text("namespace");
    let Some(scope) = parameters.opt_text("scope") else {
        errors.push(FieldError::required(&path.child("scope"), ""));
        return errors;
    };
    match (scope, namespace) {
        ("Namespace", None) => {
            errors.push(FieldError::required(&namespace_path, "`parameters.scope` is set to 'Namespace'"));
        }
        ("Namespace", Some(namespace)) => errors.extend(dns_label(&namespace_path, namespace)),
        ("Cluster", Some(_)) => {
            errors.push(FieldError::forbidden(&namespace_path, "`parameters.scope` is set to 'Cluster'"));
        }
        (scope, _) => errors.extend(one_of(&path.child("scope"), scope, &["Cluster", "Namespace"])),
    }
    errors
}

/// A typed reference to another object in ingress classes and backends.
pub fn validate_reference(reference: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if let Some(group) = reference.opt_text("apiGroup") {
        errors.extend(dns_subdomain(&path.child("apiGroup"), group));
    }
    for field in ["kind", "name"] {
        let path = path.child(field);
        match reference.text(field) {
            "" => errors.push(FieldError::required(&path, "")),
            name => errors.extend(invalid_each(&path, name, names::path_segment_name(name, false))),
        }
    }
    errors
}
