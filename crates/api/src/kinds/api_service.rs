//! APIService: the server of a group version.

use crate::kind::{drop_status, keep_status};
use crate::validation::checks::{dns_subdomain, invalid_each, one_of};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    validate_name: |name, _| names::path_segment_name(name, false),
    any_finalizer: true,
    default,
    prepare_create,
    prepare_update: keep_status,
    validate,
    validate_update: |new, _| validate(new),
    validate_status_update: |new, _| validate_status(new.field("status")),
    unconditional_update: false,
    prepare_status_update: crate::kind::keep_metadata_and_spec,
    metadata_on_update: &[MetadataCheck::Update, MetadataCheck::New],
    reset_fields: crate::kind::METADATA_RESET_FIELDS,
    stored_as_json: true,
    storage_path: "apiregistration.k8s.io/apiservices",
    table: &crate::tables::api_service::API_SERVICE,
    ..Kind::new("apiregistration.k8s.io", "v1", "APIService", "apiservices", Scope::Cluster)
};

const GROUP_PRIORITY_MAX: i64 = 20000;
const VERSION_PRIORITY_MAX: i64 = 1000;

fn default(object: &mut Value) {
    if let Some(service) = object.at_mut("spec.service") {
        service.default_to("port", 443);
    }
}

/// Local group versions are available immediately.
fn prepare_create(object: &mut Value) {
    drop_status(object);
    if !object.field("spec").has("service") {
        let now = crate::clock::now_text();
        let condition = json!({
            "type": "Available",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "Local",
            "message": "Local APIServices are always available",
        });
        object.set("status", json!({"conditions": [condition]}));
    }
}

fn validate(object: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let (path, spec) = (Path::new("spec"), object.field("spec"));
    let (group, version) = (spec.text("group"), spec.text("version"));
    let (name, required_name) = (meta::name(object), format!("{version}.{group}"));
    if name != required_name && names::path_segment_name(name, false).is_empty() {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {required_name:?}");
        let path = Path::new("metadata");
        errors.push(FieldError::invalid_str(&path.child("name"), name, detail));
    }
    let group_path = path.child("group");
    if group.is_empty() && version != "v1" {
        let detail = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required(&group_path, detail));
    }
    if !group.is_empty() {
        errors.extend(dns_subdomain(&group_path, group));
    }
    errors.extend(invalid_each(&path.child("version"), version, names::dns1035_label(version, false)));
    for (field, max) in
        [("groupPriorityMinimum", GROUP_PRIORITY_MAX), ("versionPriority", VERSION_PRIORITY_MAX)]
    {
        let priority = spec.int(field);
        if !(1..=max).contains(&priority) {
            let detail = format!("must be positive and less than {max}");
            errors.push(FieldError::invalid(&path.child(field), &priority.into(), detail));
        }
    }
    errors.extend(server(spec, &path));
    errors
}

/// Validates the service reference and the TLS settings of an APIService.
fn server(spec: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let (bundle, insecure) = (spec.text("caBundle"), spec.flag("insecureSkipTLSVerify"));
    let insecure_path = path.child("insecureSkipTLSVerify");
    if !spec.has("service") {
        if !bundle.is_empty() {
            let padding = bundle.bytes().rev().take_while(|byte| *byte == b'=').count();
            let size = format!("{} bytes", (bundle.len() / 4 * 3).saturating_sub(padding));
            let detail = "local APIServices may not have a caBundle";
            errors.push(FieldError::invalid_str(&path.child("caBundle"), &size, detail));
        }
        if insecure {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(FieldError::invalid(&insecure_path, &true.into(), detail));
        }
        return errors;
    }
    let (service, service_path) = (spec.field("service"), path.child("service"));
    for field in ["namespace", "name"] {
        if service.text(field).is_empty() {
            errors.push(FieldError::required(&service_path.child(field), ""));
        }
    }
    let bad_port = names::port_number(service.int("port"));
    if !bad_port.is_empty() {
        let detail = format!("port is not valid: {}", bad_port.join(", "));
        let path = service_path.child("port");
        errors.push(FieldError::invalid(&path, &service.int("port").into(), detail));
    }
    if insecure && !bundle.is_empty() {
        let detail = "may not be true if caBundle is present";
        errors.push(FieldError::invalid(&insecure_path, &true.into(), detail));
    }
    errors
}

fn validate_status(status: &Value) -> ErrorList {
    let path = Path::new("status");
    let path = path.child("conditions");
    let conditions = status.items("conditions").iter().enumerate();
    conditions
        .flat_map(|(index, condition)| {
            let path = path.index(index);
            one_of(&path.child("status"), condition.text("status"), &["True", "False", "Unknown"])
        })
        .collect()
}
