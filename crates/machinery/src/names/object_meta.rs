//! Validation of `metadata`, common to all kinds.

use super::{dns_label, qualified_name, validate_annotations, validate_label_name, validate_labels};
use crate::field::{ErrorBudget, ErrorList, FieldError, Path};
use crate::gvk::split_api_version;
use crate::map;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Length limit of a field manager's name.
pub const FIELD_MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
const IMMUTABLE: &str = "field is immutable";

/// Validates names and returns error texts; the flag is true for a prefix (generateName).
pub type NameFn = fn(&str, bool) -> Vec<String>;

static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

fn map<'a>(meta: &'a Value, field: &str) -> &'a Map<String, Value> {
    map::of(meta, field).and_then(Value::as_object).unwrap_or(&EMPTY)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    map::of(value, field).and_then(Value::as_str).unwrap_or("")
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    map::of(value, field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn generation(meta: &Value) -> i64 {
    map::of(meta, "generation").and_then(Value::as_i64).unwrap_or(0)
}

/// `metadata` of a new object; `meta` is the metadata itself, `path` usually `metadata`. Names are already generated.
pub fn validate_object_meta(meta: &Value, namespaced: bool, name_fn: NameFn, path: &Path<'_>) -> ErrorList {
    let mut errors = validate_generic_object_meta(meta, namespaced, name_fn, path);
    errors.extend(validate_finalizers_are_standard(meta, path));
    errors
}

/// The same for kinds that accept finalizers without a domain.
pub fn validate_generic_object_meta(
    meta: &Value,
    namespaced: bool,
    name_fn: NameFn,
    path: &Path<'_>,
) -> ErrorList {
    let mut errors = Vec::new();
    let generate_name = text(meta, "generateName");
    if !generate_name.is_empty() {
        let path = path.child("generateName");
        let problems = name_fn(generate_name, true);
        errors.extend(problems.into_iter().map(|e| FieldError::invalid_str(&path, generate_name, e)));
    }
    let name = text(meta, "name");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name or generateName is required"));
    } else {
        let path = path.child("name");
        errors.extend(name_fn(name, false).into_iter().map(|e| FieldError::invalid_str(&path, name, e)));
    }
    validate_namespace(text(meta, "namespace"), namespaced, path, &mut errors);
    let generation = generation(meta);
    if generation < 0 {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            &Value::from(generation),
            "must be greater than or equal to 0",
        ));
    }
    errors.extend(validate_labels(map(meta, "labels"), &path.child("labels")));
    errors.extend(validate_annotations(map(meta, "annotations"), &path.child("annotations")));
    errors.extend(validate_owner_references(list(meta, "ownerReferences"), &path.child("ownerReferences")));
    errors.extend(validate_finalizers(list(meta, "finalizers"), &path.child("finalizers")));
    errors.extend(validate_managed_fields(list(meta, "managedFields"), &path.child("managedFields")));
    errors
}

fn validate_namespace(namespace: &str, namespaced: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let path = path.child("namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(&path, "")),
        (true, false) => {
            let problems = dns_label(namespace, false);
            errors.extend(problems.into_iter().map(|e| FieldError::invalid_str(&path, namespace, e)));
        }
        (false, false) => errors.push(FieldError::forbidden(&path, "not allowed on this type")),
        (false, true) => {}
    }
}

/// `metadata` of an update against the stored one.
pub fn validate_object_meta_update(new: &Value, old: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = validate_generic_object_meta_update(new, old, path);
    errors.extend(validate_finalizers_are_standard(new, path));
    errors
}

/// The same for kinds that accept finalizers without a domain.
pub fn validate_generic_object_meta_update(new: &Value, old: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if old.get("deletionTimestamp").is_some_and(|t| !t.is_null()) {
        errors.extend(validate_no_new_finalizers(
            list(new, "finalizers"),
            list(old, "finalizers"),
            &path.child("finalizers"),
        ));
    }
    if text(new, "resourceVersion").is_empty() {
        let path = path.child("resourceVersion");
        errors.push(FieldError::invalid_str(&path, "", "must be specified for an update"));
    }
    if generation(new) < generation(old) {
        let shown = Value::from(generation(new));
        errors.push(FieldError::invalid(&path.child("generation"), &shown, "must not be decremented"));
    }
    for field in ["name", "namespace", "uid"] {
        if text(new, field) != text(old, field) {
            errors.push(FieldError::invalid_str(&path.child(field), text(new, field), IMMUTABLE));
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (new, old) = (new.get(field).unwrap_or(&Value::Null), old.get(field).unwrap_or(&Value::Null));
        if new != old {
            errors.push(FieldError::invalid(&path.child(field), new, IMMUTABLE));
        }
    }
    errors.extend(validate_labels(map(new, "labels"), &path.child("labels")));
    errors.extend(validate_annotations(map(new, "annotations"), &path.child("annotations")));
    errors.extend(validate_owner_references(list(new, "ownerReferences"), &path.child("ownerReferences")));
    errors.extend(validate_managed_fields(list(new, "managedFields"), &path.child("managedFields")));
    errors
}

/// The standard finalizers, which have no domain.
pub fn validate_finalizers_are_standard(meta: &Value, path: &Path<'_>) -> ErrorList {
    let path = path.child("finalizers");
    let names = list(meta, "finalizers").iter().enumerate().take_while(|_| !ErrorBudget::is_spent());
    names.filter_map(|(i, f)| validate_standard_finalizer(f.as_str()?, &path.index(i))).collect()
}

/// A finalizer without a domain must be one of the standard ones.
pub fn validate_standard_finalizer(name: &str, path: &Path<'_>) -> Option<FieldError> {
    if name.contains('/') || STANDARD_FINALIZERS.contains(&name) {
        return None;
    }
    let detail = "name is neither a standard finalizer name nor is it fully qualified";
    Some(FieldError::invalid_str(path, name, detail))
}

/// A finalizer is a qualified name.
pub fn validate_finalizer_name(name: &str, path: &Path<'_>) -> ErrorList {
    qualified_name(name).into_iter().map(|e| FieldError::invalid_str(path, name, e)).collect()
}

pub fn validate_finalizers(finalizers: &[Value], path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let has = |name: &str| finalizers.iter().any(|f| f.as_str() == Some(name));
    for finalizer in finalizers.iter().take_while(|_| !ErrorBudget::is_spent()) {
        errors.extend(validate_finalizer_name(finalizer.as_str().unwrap_or(""), path));
    }
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, &Value::Array(finalizers.to_vec()), detail));
    }
    errors
}

/// An object that is being deleted accepts no new finalizers.
pub fn validate_no_new_finalizers(new: &[Value], old: &[Value], path: &Path<'_>) -> ErrorList {
    let known: HashSet<&str> = old.iter().filter_map(Value::as_str).collect();
    let mut extra: Vec<&str> = new.iter().filter_map(Value::as_str).filter(|f| !known.contains(f)).collect();
    if extra.is_empty() {
        return Vec::new();
    }
    extra.sort_unstable();
    extra.dedup();
    let quoted: Vec<String> = extra.iter().map(|f| crate::field::show_str(f)).collect();
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        quoted.join(", ")
    );
    vec![FieldError::forbidden(path, detail)]
}

/// Every reference is complete, none is to an Event, and at most one is the controller.
pub fn validate_owner_references(references: &[Value], path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut first_controller: Option<String> = None;
    for reference in references.iter().take_while(|_| !ErrorBudget::is_spent()) {
        validate_owner_reference(reference, path, &mut errors);
        if reference.get("controller").and_then(Value::as_bool) != Some(true) {
            continue;
        }
        let name = format!("{}/{}", text(reference, "kind"), text(reference, "name"));
        match &first_controller {
            Some(first) => {
                let shown: Vec<String> = references.iter().map(show_owner_reference).collect();
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errors.push(FieldError::invalid_shown(path, format!("[{}]", shown.join(",")), detail));
            }
            None => first_controller = Some(name),
        }
    }
    errors
}

fn validate_owner_reference(reference: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let api_version = text(reference, "apiVersion");
    let (group, version) = match api_version.matches('/').count() {
        0 | 1 => split_api_version(api_version),
        _ => ("", ""),
    };
    if version.is_empty() {
        let path = path.child("apiVersion");
        errors.push(FieldError::invalid_str(&path, api_version, "version must not be empty"));
    }
    for field in ["kind", "name", "uid"] {
        if text(reference, field).is_empty() {
            errors.push(FieldError::invalid_str(&path.child(field), "", "must not be empty"));
        }
    }
    if group.is_empty() && version == "v1" && text(reference, "kind") == "Event" {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(FieldError::invalid_shown(path, show_owner_reference(reference), detail));
    }
}

/// A reference as JSON with the fields in declaration order, which is not alphabetical.
fn show_owner_reference(reference: &Value) -> String {
    let mut fields: Vec<String> = ["apiVersion", "kind", "name", "uid"]
        .iter()
        .map(|f| format!("\"{f}\":{}", Value::from(text(reference, f))))
        .collect();
    for field in ["controller", "blockOwnerDeletion"] {
        if let Some(value) = reference.get(field).filter(|v| !v.is_null()) {
            fields.push(format!("\"{field}\":{value}"));
        }
    }
    format!("{{{}}}", fields.join(","))
}

/// Operation, type, manager and subresource of every entry; server-side apply parses its fields.
pub fn validate_managed_fields(entries: &[Value], path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let path = path.index(i);
        let operation = text(entry, "operation");
        if operation != "Apply" && operation != "Update" {
            let path = path.child("operation");
            errors.push(FieldError::invalid_str(&path, operation, "must be `Apply` or `Update`"));
        }
        let fields_type = text(entry, "fieldsType");
        if !fields_type.is_empty() && fields_type != "FieldsV1" {
            let path = path.child("fieldsType");
            errors.push(FieldError::invalid_str(&path, fields_type, "must be `FieldsV1`"));
        }
        errors.extend(validate_field_manager(text(entry, "manager"), &path.child("manager")));
        if text(entry, "subresource").len() > SUBRESOURCE_MAX {
            errors.push(FieldError::too_long(&path.child("subresource"), SUBRESOURCE_MAX));
        }
    }
    errors
}

/// A field manager's name: short and printable.
pub fn validate_field_manager(manager: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if manager.len() > FIELD_MANAGER_MAX {
        errors.push(FieldError::too_long(path, FIELD_MANAGER_MAX));
    }
    for (position, c) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
        let detail = format!("invalid character U+{:04X} (at position {position})", c as u32);
        errors.push(FieldError::invalid_str(path, manager, detail));
    }
    errors
}

/// Letters, marks, numbers, punctuation, symbols and the ASCII space; close to Unicode's definition.
pub(crate) fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => false,
        '\u{feff}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{fffb}' | '\u{f0000}'.. => false,
        c => !c.is_control() && !c.is_whitespace(),
    }
}

/// A list of `metav1.Condition`s.
pub fn validate_conditions(conditions: &[Value], path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        let kind = text(condition, "type");
        if conditions[..i].iter().any(|c| text(c, "type") == kind) {
            errors.push(FieldError::duplicate(&path.child("type"), &Value::from(kind)));
        }
        errors.extend(validate_condition(condition, &path));
    }
    errors
}

fn validate_condition(condition: &Value, path: &Path<'_>) -> ErrorList {
    const REASON_MAX: usize = 1024;
    const MESSAGE_MAX: usize = 32 * 1024;
    let mut errors = validate_label_name(text(condition, "type"), &path.child("type"));
    let status = text(condition, "status");
    if !["True", "False", "Unknown"].contains(&status) {
        let supported = ["False", "True", "Unknown"];
        errors.push(FieldError::not_supported(&path.child("status"), &Value::from(status), &supported));
    }
    let observed = condition.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0);
    if observed < 0 {
        let path = path.child("observedGeneration");
        errors.push(FieldError::invalid(
            &path,
            &Value::from(observed),
            "must be greater than or equal to zero",
        ));
    }
    if text(condition, "lastTransitionTime").is_empty() {
        errors.push(FieldError::required(&path.child("lastTransitionTime"), ""));
    }
    let reason = text(condition, "reason");
    let reason_path = path.child("reason");
    if reason.is_empty() {
        errors.push(FieldError::required(&reason_path, ""));
    } else {
        let problems = super::condition_reason(reason);
        errors.extend(problems.into_iter().map(|e| FieldError::invalid_str(&reason_path, reason, e)));
        if reason.len() > REASON_MAX {
            errors.push(FieldError::too_long(&reason_path, REASON_MAX));
        }
    }
    if text(condition, "message").len() > MESSAGE_MAX {
        errors.push(FieldError::too_long(&path.child("message"), MESSAGE_MAX));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn create(meta: Value) -> Vec<String> {
        let errors = validate_object_meta(&meta, true, super::super::dns_subdomain, &Path::new("metadata"));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn create_metadata_is_validated() {
        assert!(create(json!({"name": "a", "namespace": "b"})).is_empty());
        assert_eq!(
            create(json!({"namespace": "b"})),
            ["metadata.name: Required value: name or generateName is required"]
        );
        assert_eq!(create(json!({"name": "a"})), ["metadata.namespace: Required value"]);
        assert_eq!(
            create(json!({"name": "a", "namespace": "b", "finalizers": ["nofqdn"]})),
            [
                "metadata.finalizers[0]: Invalid value: \"nofqdn\": name is neither a standard finalizer name nor is it fully qualified"
            ]
        );
        assert_eq!(
            create(json!({"name": "a", "namespace": "b", "ownerReferences": [{"apiVersion": "v1"}]})),
            [
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ]
        );
    }

    #[test]
    fn owner_references_allow_one_controller() {
        let reference = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
        let errors = validate_owner_references(&[reference("a"), reference("b")], &Path::new("refs"));
        assert_eq!(
            errors[0].to_string(),
            r#"refs: Invalid value: [{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u","controller":true},{"apiVersion":"v1","kind":"Pod","name":"b","uid":"u","controller":true}]: Only one reference can have Controller set to true. Found "true" in references for Pod/a and Pod/b"#
        );
    }

    #[test]
    fn update_metadata_is_validated() {
        let old = json!({"name": "a", "uid": "1", "resourceVersion": "1", "deletionTimestamp": "t", "generation": 2});
        let new = json!({"name": "a", "uid": "2", "finalizers": ["x/y"], "generation": 1});
        let errors: Vec<String> = validate_object_meta_update(&new, &old, &Path::new("metadata"))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            errors,
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"x/y\"}",
                "metadata.resourceVersion: Invalid value: \"\": must be specified for an update",
                "metadata.generation: Invalid value: 1: must not be decremented",
                "metadata.uid: Invalid value: \"2\": field is immutable",
                "metadata.deletionTimestamp: Invalid value: null: field is immutable",
            ]
        );
    }

    #[test]
    fn managed_fields_entries_are_validated() {
        let path = Path::new("metadata");
        let path = path.child("managedFields");
        let entries = [json!({"manager": "a\u{7}", "operation": "x", "fieldsType": "v2"})];
        let errors: Vec<String> =
            validate_managed_fields(&entries, &path).iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "metadata.managedFields[0].operation: Invalid value: \"x\": must be `Apply` or `Update`",
                "metadata.managedFields[0].fieldsType: Invalid value: \"v2\": must be `FieldsV1`",
                "metadata.managedFields[0].manager: Invalid value: \"a\\a\": invalid character U+0007 (at position 1)",
            ]
        );
    }
}
