//! Pod.

pub use crate::pod::ephemeral::{
    prepare as prepare_ephemeral_containers, validate as validate_ephemeral_containers_update,
};
pub use crate::pod::resize::{prepare as prepare_resize, validate as validate_resize};

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{Graceful, SelectableField, keep_status};
use crate::pod::{create, status, update};
use crate::pod_spec::{defaults, disabled, warnings};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    default,
    prepare_create: create::prepare,
    prepare_update,
    prepare_status_update: status::prepare,
    validate: create::validate,
    validate_update: update::validate,
    validate_status_update: status::validate,
    warnings,
    status_warnings,
    graceful,
    early_warnings,
    counts_generation: true,
    metadata_on_update: &[MetadataCheck::Update, MetadataCheck::New],
    reset_fields: &[
        ("", &[&["status"]]),
        ("status", &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]),
    ],
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::pod::POD,
    returns_deleted: true,
    ..Kind::new("", "v1", "Pod", "pods", Scope::Namespaced)
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, NAMESPACE, field, flag, text};
    &[
        NAME,
        NAMESPACE,
        field("spec.nodeName", |pod| text(pod, "/spec/nodeName")),
        field("spec.restartPolicy", |pod| text(pod, "/spec/restartPolicy")),
        field("spec.schedulerName", |pod| text(pod, "/spec/schedulerName")),
        field("spec.serviceAccountName", |pod| text(pod, "/spec/serviceAccountName")),
        field("spec.hostNetwork", |pod| flag(pod, "/spec/hostNetwork")),
        field("status.phase", |pod| text(pod, "/status/phase")),
        field("status.podIP", |pod| text(pod, "/status/podIPs/0/ip")),
        // Accepted, but always empty, as in Kubernetes.
        field("status.podIPs", |_| "".into()),
        field("status.nominatedNodeName", |pod| text(pod, "/status/nominatedNodeName")),
        // Former name of the node field.
        field("spec.host", |pod| text(pod, "/spec/nodeName")),
    ]
};

fn default(pod: &mut Value) {
    defaults::default_pod(pod);
    if let Some(status) = pod.field_mut("status") {
        defaults::default_pod_status(status);
    }
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    if let Some(spec) = new.field_mut("spec") {
        disabled::drop_disabled_fields(spec, old.field("spec"));
    }
}

/// Runs before preparation, which copies annotations to fields: afterwards their origin is unknown.
fn early_warnings(pod: &Value) -> Vec<String> {
    warnings::warn_app_armor_annotations(pod)
}

/// Warnings for new pods only: later writes are made by components.
fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut found = warnings::warn_name(new, "the Pod's hostname");
    found.extend(warnings::warnings_for(new, false, &Path::ROOT));
    found
}

fn status_warnings(pod: &Value) -> Vec<String> {
    let path = Path::new("status");
    let of_field = |field: &'static str| {
        let path = path.child(field);
        let addresses = pod.field("status").items(field).iter().enumerate();
        addresses
            .flat_map(|(i, address)| names::warnings_for_ip(&path.index(i).child("ip"), address.text("ip")))
            .collect::<Vec<_>>()
    };
    [of_field("podIPs"), of_field("hostIPs")].concat()
}

/// An unscheduled or terminated pod is deleted immediately; any other waits for its kubelet.
fn graceful(pod: &Value, requested: Option<i64>) -> Graceful {
    let period = requested.or(pod.field("spec").opt_int("terminationGracePeriodSeconds")).unwrap_or(0);
    let gone = pod.field("spec").text("nodeName").is_empty()
        || matches!(pod.field("status").text("phase"), "Failed" | "Succeeded");
    match period {
        _ if gone => Graceful::After(0),
        period if period < 0 => Graceful::After(1),
        period => Graceful::After(period),
    }
}

/// A `Binding` sent to a pod's `binding` subresource.
pub fn validate_binding(binding: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let target = binding.field("target");
    let path = Path::new("target");
    let kind = target.text("kind");
    if !kind.is_empty() && kind != "Node" {
        let supported = ["Node", "<empty>"];
        errors.push(FieldError::not_supported(&path.child("kind"), &Value::from(kind), &supported));
    }
    if target.text("name").is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finished_pods_are_deleted_immediately() {
        for (phase, finished) in vectors::PHASES {
            let pod = json!({"spec": {"nodeName": "n"}, "status": {"phase": phase}});
            assert_eq!(matches!(graceful(&pod, Some(30)), Graceful::After(0)), finished, "{phase}");
        }
    }
}
