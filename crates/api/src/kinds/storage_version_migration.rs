//! StorageVersionMigration: rewrites every object of a resource.

use crate::kind::{METADATA_RESET_FIELDS, drop_status, keep_metadata_and_spec, keep_status};
use crate::validation::checks::{immutable, invalid_each};
use crate::validation::values::IMMUTABLE;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    prepare_create: drop_status,
    prepare_update: keep_status,
    prepare_status_update: keep_metadata_and_spec,
    validate,
    validate_update: |new, old| {
        let mut errors = validate(new);
        errors.extend(immutable(&Path::new("spec"), new.field("spec"), old.field("spec")));
        errors
    },
    validate_status_update,
    unconditional_update: false,
    reset_fields: METADATA_RESET_FIELDS,
    table: &crate::tables::storage::STORAGE_VERSION_MIGRATION,
    ..Kind::new(
        "storagemigration.k8s.io",
        "v1beta1",
        "StorageVersionMigration",
        "storageversionmigrations",
        Scope::Cluster,
    )
};

fn validate(migration: &Value) -> ErrorList {
    let resource = migration.at("spec.resource");
    let path = Path::new("spec");
    let path = path.child("resource");
    let (name, group) = (resource.text("resource"), resource.text("group"));
    let joined =
        |messages: Vec<String>| if messages.is_empty() { messages } else { vec![messages.join(",")] };
    let mut errors = match name {
        "" => vec![FieldError::required(&path.child("resource"), "resource is required to be set")],
        name => invalid_each(&path.child("resource"), name, joined(names::dns1035_label(name, false))),
    };
    if !group.is_empty() {
        errors.extend(invalid_each(&path.child("group"), group, joined(names::dns_subdomain(group, false))));
    }
    errors
}

fn validate_status_update(new: &Value, old: &Value) -> ErrorList {
    let (status, before) = (new.field("status"), old.field("status"));
    let path = Path::new("status");
    let version_path = path.child("resourceVersion");
    let version = status.text("resourceVersion");
    let mut errors = Vec::new();
    let is_number = version.bytes().all(|byte| byte.is_ascii_digit()) && !version.starts_with('0');
    if !version.is_empty() && !is_number {
        let detail = format!("resource version is not well formed: {version}");
        errors.push(FieldError::invalid_str(&version_path, version, detail));
    }
    let conditions_path = path.child("conditions");
    errors.extend(names::validate_conditions(status.items("conditions"), &conditions_path));
    let fixed = before.text("resourceVersion");
    if !fixed.is_empty() && fixed != version {
        errors.push(FieldError::invalid_str(&version_path, version, IMMUTABLE));
    }
    let mut reject = |holds: bool, detail: &str| {
        if holds {
            errors.push(FieldError::invalid(&conditions_path, status.field("conditions"), detail));
        }
    };
    let (succeeded, failed) = (is_true(status, "Succeeded"), is_true(status, "Failed"));
    reject(succeeded && failed, "Both success and failed conditions cannot be true at the same time");
    reject(
        is_true(before, "Succeeded") && !succeeded,
        "Success condition cannot be set to false once it is true",
    );
    reject(is_true(before, "Failed") && !failed, "Failed condition cannot be set to false once it is true");
    errors
}

fn is_true(status: &Value, kind: &str) -> bool {
    let mut conditions = status.items("conditions").iter();
    conditions.any(|condition| condition.text("type") == kind && condition.text("status") == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(FieldError::to_string).collect()
    }

    #[test]
    fn migration_resource_is_required_and_immutable() {
        assert_eq!(
            texts(&validate(&json!({"spec": {"resource": {"group": "A"}}})))[0],
            "spec.resource.resource: Required value: resource is required to be set"
        );
        let (old, new) = (
            json!({"spec": {"resource": {"resource": "secrets"}}}),
            json!({"spec": {"resource": {"resource": "configmaps"}}}),
        );
        assert_eq!((KIND.validate_update)(&old, &old), Vec::new());
        assert!(texts(&(KIND.validate_update)(&new, &old))[0].contains("field is immutable"));
    }

    #[test]
    fn finished_migration_conditions_are_final() {
        let condition = |kind: &str, status: &str| {
            json!({"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "R",
                   "message": ""})
        };
        let old =
            json!({"status": {"resourceVersion": "12", "conditions": [condition("Succeeded", "True")]}});
        assert_eq!(validate_status_update(&old, &old), Vec::new());
        let new = json!({"status": {"resourceVersion": "13", "conditions": [condition("Failed", "True")]}});
        let errors = texts(&validate_status_update(&new, &old));
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[1].contains("Success condition cannot be set to false"), "{errors:?}");
    }
}
