//! CustomResourceDefinition: names, scope, versions.

use crate::kind::drop_status;
use crate::validation::custom_resource_definition::{format_warnings, names_of, spec, stored_versions};
use crate::validation::values::unchanged;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    any_finalizer: true,
    default,
    prepare_create,
    prepare_update,
    validate,
    validate_update,
    validate_status_update: |new, _| {
        let path = Path::new("status");
        names_of(new.at("status.acceptedNames"), &path.child("acceptedNames"))
    },
    warnings: |new, old| format_warnings(new.field("spec"), old.map(|old| old.field("spec"))),
    counts_generation: true,
    unconditional_update: false,
    held: |definition| meta::deletion_timestamp(definition).is_none(),
    mark_deleting,
    stored_as_json: true,
    storage_path: "apiextensions.k8s.io/customresourcedefinitions",
    ..Kind::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Scope::Cluster,
    )
};

const APPROVAL: &str = "api-approved.kubernetes.io";
/// Finalizer that blocks deletion of a definition until its objects are deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Starts deletion: the definition waits until its objects are deleted, and rejects new ones.
fn mark_deleting(definition: &mut Value) {
    let mut finalizers = meta::finalizers(definition).to_vec();
    if finalizers.iter().any(|name| name == CLEANUP) {
        return;
    }
    finalizers.push(CLEANUP.into());
    let since = meta::deletion_timestamp(definition).unwrap_or_default().to_owned();
    meta::metadata_mut(definition).insert("finalizers".to_owned(), Value::Array(finalizers));
    let condition = json!({
        "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        "lastTransitionTime": since,
    });
    let status = definition.child_mut("status");
    let mut conditions = status.items("conditions").to_vec();
    conditions.retain(|known| known.text("type") != "Terminating");
    conditions.push(condition);
    status.set("conditions", Value::Array(conditions));
}

fn default(definition: &mut Value) {
    let spec = definition.child_mut("spec");
    let names = spec.child_mut("names");
    let kind = names.text("kind").to_owned();
    if !kind.is_empty() {
        names.default_if_zero("singular", kind.to_lowercase());
        names.default_if_zero("listKind", format!("{kind}List"));
    }
    if !spec.has("conversion") {
        spec.set("conversion", json!({"strategy": "None"}));
    }
    if let Some(service) = spec.at_mut("conversion.webhook.clientConfig.service") {
        service.default_to("port", 443);
    }
    if definition.field("status").items("storedVersions").is_empty() {
        add_stored_version(definition);
    }
}

/// Adds the storage version to the stored versions.
fn add_stored_version(definition: &mut Value) {
    let mut versions = definition.field("spec").items("versions").iter();
    let Some(name) =
        versions.find(|version| version.flag("storage")).map(|version| version.field("name").clone())
    else {
        return;
    };
    let status = definition.child_mut("status");
    match status.field_mut("storedVersions") {
        Some(Value::Array(stored)) if stored.contains(&name) => {}
        Some(Value::Array(stored)) => stored.push(name),
        _ => status.set("storedVersions", Value::Array(vec![name])),
    }
}

fn prepare_create(definition: &mut Value) {
    drop_status(definition);
    add_stored_version(definition);
}

fn prepare_update(new: &mut Value, old: &Value) {
    crate::kind::keep_status(new, old);
    add_stored_version(new);
}

fn validate(definition: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("metadata");
    let required_name =
        format!("{}.{}", definition.at("spec.names").text("plural"), definition.field("spec").text("group"));
    for field in ["generateName", "name"] {
        let name = meta::text(definition, field);
        if !name.is_empty() && name != required_name {
            let detail = "must be spec.names.plural+\".\"+spec.group";
            errors.push(FieldError::invalid_str(&path.child(field), name, detail));
        }
    }
    errors.extend(spec(definition.field("spec"), None, &Path::new("spec")));
    errors.extend(rest(definition, None));
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let path = Path::new("spec");
    let (new_spec, old_spec) = (new.field("spec"), old.field("spec"));
    let mut errors = spec(new_spec, Some(old_spec), &path);
    let names_path = path.child("names");
    let mut conditions = old.field("status").items("conditions").iter();
    if conditions.any(|c| c.text("type") == "Established" && c.text("status") == "True") {
        errors.extend(unchanged(&path.child("scope"), new_spec.field("scope"), old_spec.field("scope")));
        let (new_kind, old_kind) = (new_spec.at("names.kind"), old_spec.at("names.kind"));
        errors.extend(unchanged(&names_path.child("kind"), new_kind, old_kind));
    }
    errors.extend(unchanged(&path.child("group"), new_spec.field("group"), old_spec.field("group")));
    let (new_plural, old_plural) = (new_spec.at("names.plural"), old_spec.at("names.plural"));
    errors.extend(unchanged(&names_path.child("plural"), new_plural, old_plural));
    errors.extend(rest(new, Some(old)));
    errors
}

/// Validates status, approval of protected groups, and `preserveUnknownFields`.
fn rest(definition: &Value, old: Option<&Value>) -> ErrorList {
    let path = Path::new("status");
    let status = definition.field("status");
    let mut errors = names_of(status.field("acceptedNames"), &path.child("acceptedNames"));
    let versions = definition.field("spec").items("versions");
    errors.extend(stored_versions(status, versions, &path.child("storedVersions")));
    errors.extend(approval(definition, old));
    let was_set = old.is_some_and(|old| old.field("spec").flag("preserveUnknownFields"));
    if !was_set && definition.field("spec").flag("preserveUnknownFields") {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                      spec.versions[*].schema instead";
        let path = Path::new("spec");
        errors.push(FieldError::invalid(&path.child("preserveUnknownFields"), &true.into(), detail));
    }
    errors
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

fn approval_state(definition: &Value) -> Approval {
    let text = meta::annotation(definition, APPROVAL).unwrap_or("");
    let is_url = text.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty()
            && names::dns1035_label(scheme, false).is_empty()
            && !rest.starts_with('/')
            && !rest.is_empty()
    });
    match text {
        "" => Approval::Missing,
        _ if text.starts_with("unapproved") => Approval::Bypassed,
        _ if is_url => Approval::Approved,
        _ => Approval::Invalid,
    }
}

/// Groups of the Kubernetes community need an API approval annotation.
fn approval(definition: &Value, old: Option<&Value>) -> Option<FieldError> {
    let group = definition.field("spec").text("group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    let state = approval_state(definition);
    if !protected || old.is_some_and(|old| approval_state(old) == state) {
        return None;
    }
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let path = Path::new("metadata");
    let path = path.child("annotations");
    let path = path.key(APPROVAL);
    match state {
        Approval::Approved | Approval::Bypassed => None,
        Approval::Missing => {
            let detail = format!("protected groups must have approval annotation {APPROVAL:?}, {SEE}");
            Some(FieldError::required(&path, detail))
        }
        Approval::Invalid => {
            let detail = format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason \
                 starting with \"unapproved\", {SEE}"
            );
            let text = meta::annotation(definition, APPROVAL).unwrap_or("");
            Some(FieldError::invalid_str(&path, text, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widget() -> Value {
        json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        })
    }

    #[test]
    fn minimal_definition_is_valid() {
        let mut definition = widget();
        default(&mut definition);
        assert_eq!(
            definition["spec"]["names"],
            json!({"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"})
        );
        assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
        assert_eq!(validate(&definition), []);
    }

    #[test]
    fn established_names_are_immutable() {
        let mut old = widget();
        default(&mut old);
        let mut new = old.clone();
        new["spec"]["scope"] = "Cluster".into();
        assert_eq!(validate_update(&new, &old), []);
        old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        let errors = validate_update(&new, &old);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].to_string(), "spec.scope: Invalid value: \"Cluster\": field is immutable");
    }

    #[test]
    fn protected_group_needs_approval() {
        let mut definition = widget();
        definition["metadata"]["name"] = "widgets.foo.k8s.io".into();
        definition["spec"]["group"] = "foo.k8s.io".into();
        assert!(approval(&definition, None).is_some());
        definition["metadata"]["annotations"] = json!({APPROVAL: "https://example.com/1"});
        assert_eq!(approval(&definition, None), None);
    }
}
