//! Namespace. Its two-phase deletion is implemented by the registry.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::SelectableField;
use crate::value::{Fields, texts};
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{meta, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    validate_name: names::dns_label,
    canonicalize: label_with_name,
    held: |namespace| !namespace.field("spec").items("finalizers").is_empty(),
    mark_deleting,
    validate,
    validate_update: |new, old| {
        let mut errors = validate(new);
        errors.extend(KIND.metadata_update_errors(new, old));
        errors
    },
    metadata_on_update: &[MetadataCheck::New],
    validate_status_update,
    reset_fields: &[("", &[&["status"]]), ("status", &[&["spec"]]), ("finalize", &[&["status"]])],
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::config::NAMESPACE,
    ..Kind::new("", "v1", "Namespace", "namespaces", Scope::Cluster)
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, field, text};
    &[NAME, field("status.phase", |ns| text(ns, "/status/phase"))]
};

/// Label with the namespace's name, for selectors.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Finalizer in `spec.finalizers` of the namespace controller, which deletes the content of a namespace.
pub const FINALIZER: &str = "kubernetes";

fn default(namespace: &mut Value) {
    if !meta::name(namespace).is_empty() {
        label_with_name(namespace);
    }
    namespace.child_mut("status").default_if_zero("phase", "Active");
}

/// Also runs after validation: a generated name is unknown when defaults are set.
fn label_with_name(namespace: &mut Value) {
    let name = meta::name(namespace).to_owned();
    let labels = namespace.child_mut("metadata").child_mut("labels");
    if labels.text(NAME_LABEL) != name {
        labels.set(NAME_LABEL, name);
    }
}

fn prepare_create(namespace: &mut Value) {
    let spec = namespace.child_mut("spec");
    match spec.field_mut("finalizers") {
        Some(Value::Array(list)) if list.iter().any(|finalizer| finalizer == FINALIZER) => {}
        Some(Value::Array(list)) => list.push(FINALIZER.into()),
        _ => spec.set("finalizers", json!([FINALIZER])),
    }
    namespace.set("status", json!({"phase": "Active"}));
}

fn prepare_update(new: &mut Value, old: &Value) {
    crate::kind::keep_status(new, old);
    let spec = new.child_mut("spec");
    match old.field("spec").get("finalizers") {
        Some(finalizers) => spec.set("finalizers", finalizers.clone()),
        None => {
            spec.unset("finalizers");
        }
    }
}

/// Sets the phase of a terminating namespace; it has no grace period.
fn mark_deleting(namespace: &mut Value) {
    namespace.child_mut("metadata").unset("deletionGracePeriodSeconds");
    namespace.set("status", json!({"phase": "Terminating"}));
}

/// Before a write to the `finalize` subresource: takes the finalizers, restores status.
pub fn prepare_finalize(new: &mut Value, old: &Value) {
    crate::kind::keep_status(new, old);
}

fn validate(namespace: &Value) -> ErrorList {
    let path = Path::new("spec");
    let path = path.child("finalizers");
    let finalizers = namespace.field("spec").items("finalizers");
    texts(finalizers).flat_map(|finalizer| validate_finalizer(finalizer, &path)).collect()
}

fn validate_finalizer(finalizer: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = names::validate_finalizer_name(finalizer, path);
    errors.extend(names::validate_standard_finalizer(finalizer, path));
    errors
}

/// A write to the `finalize` subresource.
pub fn validate_finalize(new: &Value, _: &Value) -> ErrorList {
    let path = Path::new("spec");
    let path = path.child("finalizers");
    let finalizers = texts(new.field("spec").items("finalizers")).enumerate();
    finalizers.flat_map(|(i, finalizer)| validate_finalizer(finalizer, &path.index(i))).collect()
}

fn validate_status_update(new: &Value, _: &Value) -> ErrorList {
    let (expected, when) = match meta::deletion_timestamp(new) {
        None => ("Active", "empty"),
        Some(_) => ("Terminating", "not empty"),
    };
    let phase = new.field("status").text("phase");
    if phase == expected {
        return Vec::new();
    }
    let path = Path::new("status");
    let detail = format!("may only be '{expected}' if `deletionTimestamp` is {when}");
    // Kubernetes reports this field with a capital P.
    vec![FieldError::invalid_str(&path.child("Phase"), phase, detail)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_sets_phase_label_and_finalizer() {
        let mut ns = json!({"metadata": {"name": "a", "labels": {NAME_LABEL: "b"}}, "spec": {}});
        default(&mut ns);
        prepare_create(&mut ns);
        assert_eq!(
            ns,
            json!({
                "metadata": {"name": "a", "labels": {NAME_LABEL: "a"}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            })
        );
        let mut ns = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["x.io/y"]}});
        prepare_create(&mut ns);
        assert_eq!(ns["spec"]["finalizers"], json!(["x.io/y", "kubernetes"]));
    }

    #[test]
    fn update_keeps_finalizers() {
        let old =
            json!({"metadata": {}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let mut new = json!({"metadata": {}, "spec": {}, "status": {"phase": "Terminating"}});
        prepare_update(&mut new, &old);
        assert_eq!(new, old);
    }
}
