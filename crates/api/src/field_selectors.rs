//! Fields supported in field selectors: errors of unsupported ones, and readers of values. Each kind lists its fields
//! in its own file.

use crate::kind::SelectableField;
use machinery::{Value, meta};
use std::borrow::Cow;
use std::fmt;

/// A field selector with a field that the resource does not support. `Display` is the whole message of the 400
/// response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedField {
    error: LabelError,
    label: String,
}

impl fmt::Display for UnsupportedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = &self.label;
        match self.error {
            LabelError::Generic => write!(
                f,
                "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            ),
            LabelError::Label => write!(f, "field label not supported: {label}"),
            LabelError::Of(kind) => write!(f, "field label {label:?} not supported for {kind}"),
            LabelError::For(kind) => write!(f, "field label not supported for {kind}: {label}"),
        }
    }
}

impl std::error::Error for UnsupportedField {}

impl UnsupportedField {
    /// Error of a custom resource.
    pub fn of_custom(label: &str) -> Self {
        Self { error: LabelError::Label, label: label.to_owned() }
    }
}

/// Form of a kind's error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelError {
    Generic,
    Label,
    Of(&'static str),
    For(&'static str),
}

/// Fields of a kind that field selectors support.
#[derive(Clone, Copy, Debug)]
pub struct Selectable {
    pub fields: &'static [SelectableField],
    error: LabelError,
}

impl Selectable {
    /// Cluster-scoped kinds accept the namespace too: it is empty.
    pub const GENERIC: Self = Self::new(&[NAME, NAMESPACE], LabelError::Generic);

    pub const fn new(fields: &'static [SelectableField], error: LabelError) -> Self {
        Self { fields, error }
    }

    /// Resolves the field label of a selector.
    pub fn find(&self, label: &str) -> Result<&'static SelectableField, UnsupportedField> {
        self.fields
            .iter()
            .find(|field| field.name == label)
            .ok_or_else(|| UnsupportedField { error: self.error, label: label.to_owned() })
    }
}

pub(crate) const NAME: SelectableField = field("metadata.name", |object| meta::name(object).into());
pub(crate) const NAMESPACE: SelectableField =
    field("metadata.namespace", |object| meta::namespace(object).into());

pub(crate) const fn field(name: &'static str, value: fn(&Value) -> Cow<'_, str>) -> SelectableField {
    SelectableField { name, value }
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Cow<'a, str> {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("").into()
}

/// The first of two fields that is not empty.
pub(crate) fn either<'a>(object: &'a Value, first: &str, second: &str) -> Cow<'a, str> {
    match text(object, first) {
        value if value.is_empty() => text(object, second),
        value => value,
    }
}

pub(crate) fn flag<'a>(object: &'a Value, pointer: &str) -> Cow<'a, str> {
    let set = object.pointer(pointer).and_then(Value::as_bool).unwrap_or(false);
    if set { "true".into() } else { "false".into() }
}

pub(crate) fn number<'a>(object: &'a Value, pointer: &str) -> Cow<'a, str> {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    fn find(group: &str, resource: &str, label: &str) -> Result<&'static SelectableField, UnsupportedField> {
        kinds::find(group, resource).expect("a kind").selectable.find(label)
    }

    #[test]
    fn unsupported_field_error_message_depends_on_kind() {
        let cases = [
            ("", "pods", "spec.x", "field label not supported: spec.x"),
            ("", "nodes", "metadata.namespace", "field label not supported: metadata.namespace"),
            ("batch", "jobs", "a", "field label \"a\" not supported for Job"),
            (
                "resource.k8s.io",
                "resourceslices",
                "a",
                "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: a",
            ),
            (
                "apps",
                "replicasets",
                "status.replicas",
                "\"status.replicas\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
        ];
        for (group, resource, label, message) in cases {
            let refusal = find(group, resource, label).unwrap_err();
            assert_eq!(refusal.to_string(), message);
        }
    }

    #[test]
    fn field_values_are_read_from_objects() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"nodeName": "n1", "hostNetwork": true},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        let core_event = json!({"involvedObject": {"name": "p"}, "reportingComponent": "kubelet"});
        let event = json!({"regarding": {"name": "p"}, "reportingController": "kubelet"});
        let cases = [
            ("", "pods", "metadata.namespace", &pod, "ns"),
            ("", "pods", "spec.host", &pod, "n1"),
            ("", "pods", "spec.hostNetwork", &pod, "true"),
            ("", "pods", "status.podIP", &pod, "10.0.0.1"),
            ("", "pods", "status.podIPs", &pod, ""),
            ("", "nodes", "spec.unschedulable", &json!({}), "false"),
            ("batch", "jobs", "status.successful", &json!({"status": {"succeeded": 2}}), "2"),
            ("", "replicationcontrollers", "status.replicas", &json!({}), "0"),
            ("", "events", "involvedObject.name", &core_event, "p"),
            ("", "events", "source", &event, "kubelet"),
            ("events.k8s.io", "events", "regarding.name", &core_event, "p"),
            ("events.k8s.io", "events", "reportingController", &event, "kubelet"),
        ];
        for (group, resource, label, object, value) in cases {
            let field = find(group, resource, label).unwrap();
            assert_eq!((field.value)(object), value, "{resource} {label}");
        }
    }

    #[test]
    fn event_fields_exist_in_stored_form() {
        let (core, events) = (&kinds::event::KIND, &kinds::event::EVENTS_KIND);
        for field in events.selectable.fields {
            let stored = (events.stored_field)(field.name);
            assert!(core.selectable.find(&stored).is_ok(), "{}", field.name);
        }
    }
}
