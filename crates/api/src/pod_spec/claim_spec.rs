//! Spec of a PersistentVolumeClaim, also in templates.

use super::resources::{quantity, validate_quantity_value};
use crate::pod_spec::checks::{NOT_POSITIVE, dns_subdomain, invalid_texts, one_of, required_text};
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub fn validate_claim_spec(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let modes = spec.items("accessModes");
    let modes_path = path.child("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(&modes_path, "at least 1 access mode is required"));
    }
    if spec.has("selector") {
        errors.extend(names::validate_label_selector(spec.field("selector"), false, &path.child("selector")));
    }
    for mode in texts(modes) {
        one_of(mode, &ACCESS_MODES, &modes_path, errors);
    }
    let single = |mode: &str| mode == "ReadWriteOncePod";
    if texts(modes).any(single) && texts(modes).any(|m| !single(m) && ACCESS_MODES.contains(&m)) {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&modes_path, detail));
    }
    let resources = path.child("resources");
    let storage_path = resources.key("storage");
    match spec.at("resources.requests").field("storage") {
        Value::Null => errors.push(FieldError::required(&storage_path, "")),
        storage => {
            let storage = quantity(storage);
            if storage.sign() <= 0 {
                errors.push(FieldError::invalid_str(&storage_path, &storage.to_string(), NOT_POSITIVE));
            } else {
                validate_quantity_value("storage", storage, &storage_path, errors);
            }
        }
    }
    optional_class(spec, "storageClassName", path, errors);
    if let Some(mode) = spec.opt_text("volumeMode") {
        one_of(mode, &["Block", "Filesystem"], &path.child("volumeMode"), errors);
    }
    validate_sources(spec, path, errors);
    optional_class(spec, "volumeAttributesClassName", path, errors);
}

fn optional_class(spec: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if !spec.text(name).is_empty() {
        dns_subdomain(spec.text(name), &path.child(name), errors);
    }
}

fn validate_sources(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (source, reference) = (spec.field("dataSource"), spec.field("dataSourceRef"));
    for name in ["dataSource", "dataSourceRef"] {
        let source = spec.field(name);
        if source.is_null() {
            continue;
        }
        let path = path.child(name);
        required_text(source, "name", &path, errors);
        required_text(source, "kind", &path, errors);
        let (group, kind) = (source.text("apiGroup"), source.text("kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid_str(&path, kind, detail));
        }
        if !group.is_empty() {
            dns_subdomain(group, &path.child("apiGroup"), errors);
        }
        let namespace = source.text("namespace");
        if name == "dataSourceRef" && !namespace.is_empty() {
            let problems = names::dns_label(namespace, false);
            invalid_texts(problems, namespace, &path.child("namespace"), errors);
        }
    }
    if source.is_null() || reference.is_null() {
        return;
    }
    let differs = ["apiGroup", "kind", "name"].iter().any(|name| source.field(name) != reference.field(name));
    let detail = if !reference.text("namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if differs {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Kubernetes shows the path object here, which has no visible fields.
    errors.push(FieldError::invalid_shown(path, "{}", detail));
}
