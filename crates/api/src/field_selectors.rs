//! Which fields a field selector may name, per resource, and how an object answers.

use crate::kind::SelectableField;
use machinery::{Value, meta};
use std::borrow::Cow;
use std::fmt;

/// A field selector names a field that the resource cannot be selected by. `Display` is the whole message
/// of the 400 that answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedField {
    wording: Wording,
    label: String,
}

impl fmt::Display for UnsupportedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = &self.label;
        match self.wording {
            Wording::Generic => write!(
                f,
                "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            ),
            Wording::Label => write!(f, "field label not supported: {label}"),
            Wording::Of(kind) => write!(f, "field label {label:?} not supported for {kind}"),
            Wording::For(kind) => write!(f, "field label not supported for {kind}: {label}"),
        }
    }
}

impl std::error::Error for UnsupportedField {}

impl UnsupportedField {
    /// The refusal of a custom resource.
    pub fn of_custom(label: &str) -> Self {
        Self { wording: Wording::Label, label: label.to_owned() }
    }
}

/// How a resource words its refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wording {
    Generic,
    Label,
    Of(&'static str),
    For(&'static str),
}

/// The fields of one resource.
struct Fields {
    fields: &'static [SelectableField],
    wording: Wording,
}

/// The fields that select objects of this resource.
pub fn fields(group: &str, version: &str, resource: &str) -> &'static [SelectableField] {
    of(group, version, resource).fields
}

/// The field that a selector names by this label, or why it may not.
pub fn find(
    group: &str,
    version: &str,
    resource: &str,
    label: &str,
) -> Result<&'static SelectableField, UnsupportedField> {
    let of = of(group, version, resource);
    of.fields
        .iter()
        .find(|field| field.name == label)
        .ok_or_else(|| UnsupportedField { wording: of.wording, label: label.to_owned() })
}

/// What the stored form of an object calls a field: events have two names for most of theirs.
#[must_use]
pub fn stored_name<'a>(group: &str, label: &'a str) -> Cow<'a, str> {
    match (group, label) {
        ("events.k8s.io", "reportingController") => "reportingComponent".into(),
        ("events.k8s.io", label) => match label.strip_prefix("regarding.") {
            Some(field) => format!("involvedObject.{field}").into(),
            None => label.into(),
        },
        (_, label) => label.into(),
    }
}

fn of(group: &str, _version: &str, resource: &str) -> &'static Fields {
    match (group, resource) {
        ("", "pods") => &PODS,
        ("", "nodes") => &NODES,
        ("", "replicationcontrollers") => &REPLICATION_CONTROLLERS,
        ("", "events") => &CORE_EVENTS,
        ("events.k8s.io", "events") => &EVENTS,
        ("", "namespaces") => &NAMESPACES,
        ("", "secrets") => &SECRETS,
        ("", "services") => &SERVICES,
        ("batch", "jobs") => &JOBS,
        ("certificates.k8s.io", "certificatesigningrequests") => &CERTIFICATE_SIGNING_REQUESTS,
        ("certificates.k8s.io", "clustertrustbundles") => &CERTIFICATE_SIGNING_REQUESTS,
        ("certificates.k8s.io", "podcertificaterequests") => &POD_CERTIFICATE_REQUESTS,
        ("resource.k8s.io", "resourceslices") => &RESOURCE_SLICES,
        _ => &GENERIC,
    }
}

const NAME: SelectableField = field("metadata.name", |object| meta::name(object).into());
const NAMESPACE: SelectableField = field("metadata.namespace", |object| meta::namespace(object).into());

/// Cluster-scoped kinds accept the namespace too: it is empty.
static GENERIC: Fields = Fields { fields: &[NAME, NAMESPACE], wording: Wording::Generic };

static PODS: Fields = Fields {
    fields: &[
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
        // What old clients call the node.
        field("spec.host", |pod| text(pod, "/spec/nodeName")),
    ],
    wording: Wording::Label,
};

static NODES: Fields = Fields {
    fields: &[NAME, field("spec.unschedulable", |node| flag(node, "/spec/unschedulable"))],
    wording: Wording::Label,
};

static REPLICATION_CONTROLLERS: Fields = Fields {
    fields: &[NAME, NAMESPACE, field("status.replicas", |object| number(object, "/status/replicas"))],
    wording: Wording::Label,
};

/// Events answer in the shape of either group, whichever they are stored in.
static CORE_EVENTS: Fields = Fields {
    fields: &[
        NAME,
        NAMESPACE,
        field("involvedObject.kind", |event| either(event, "/involvedObject/kind", "/regarding/kind")),
        field("involvedObject.namespace", |event| {
            either(event, "/involvedObject/namespace", "/regarding/namespace")
        }),
        field("involvedObject.name", |event| either(event, "/involvedObject/name", "/regarding/name")),
        field("involvedObject.uid", |event| either(event, "/involvedObject/uid", "/regarding/uid")),
        field("involvedObject.apiVersion", |event| {
            either(event, "/involvedObject/apiVersion", "/regarding/apiVersion")
        }),
        field("involvedObject.resourceVersion", |event| {
            either(event, "/involvedObject/resourceVersion", "/regarding/resourceVersion")
        }),
        field("involvedObject.fieldPath", |event| {
            either(event, "/involvedObject/fieldPath", "/regarding/fieldPath")
        }),
        field("reason", |event| text(event, "/reason")),
        field("reportingComponent", |event| either(event, "/reportingComponent", "/reportingController")),
        field("source", |event| match either(event, "/source/component", "/deprecatedSource/component") {
            source if source.is_empty() => either(event, "/reportingComponent", "/reportingController"),
            source => source,
        }),
        field("type", |event| text(event, "/type")),
    ],
    wording: Wording::Label,
};

static EVENTS: Fields = Fields {
    fields: &[
        NAME,
        NAMESPACE,
        field("regarding.kind", |event| either(event, "/regarding/kind", "/involvedObject/kind")),
        field("regarding.namespace", |event| {
            either(event, "/regarding/namespace", "/involvedObject/namespace")
        }),
        field("regarding.name", |event| either(event, "/regarding/name", "/involvedObject/name")),
        field("regarding.uid", |event| either(event, "/regarding/uid", "/involvedObject/uid")),
        field("regarding.apiVersion", |event| {
            either(event, "/regarding/apiVersion", "/involvedObject/apiVersion")
        }),
        field("regarding.resourceVersion", |event| {
            either(event, "/regarding/resourceVersion", "/involvedObject/resourceVersion")
        }),
        field("regarding.fieldPath", |event| {
            either(event, "/regarding/fieldPath", "/involvedObject/fieldPath")
        }),
        field("reason", |event| text(event, "/reason")),
        field("reportingController", |event| either(event, "/reportingController", "/reportingComponent")),
        field("type", |event| text(event, "/type")),
    ],
    wording: Wording::Label,
};

static NAMESPACES: Fields = Fields {
    fields: &[NAME, field("status.phase", |ns| text(ns, "/status/phase"))],
    wording: Wording::Label,
};

static SECRETS: Fields = Fields {
    fields: &[NAME, NAMESPACE, field("type", |secret| text(secret, "/type"))],
    wording: Wording::Label,
};

static SERVICES: Fields = Fields {
    fields: &[
        NAME,
        NAMESPACE,
        field("spec.clusterIP", |service| text(service, "/spec/clusterIP")),
        field("spec.type", |service| text(service, "/spec/type")),
    ],
    wording: Wording::Label,
};

static JOBS: Fields = Fields {
    fields: &[NAME, NAMESPACE, field("status.successful", |job| number(job, "/status/succeeded"))],
    wording: Wording::Of("Job"),
};

static CERTIFICATE_SIGNING_REQUESTS: Fields = Fields {
    fields: &[NAME, field("spec.signerName", |request| text(request, "/spec/signerName"))],
    wording: Wording::Label,
};

static POD_CERTIFICATE_REQUESTS: Fields = Fields {
    fields: &[
        NAME,
        field("spec.signerName", |request| text(request, "/spec/signerName")),
        field("spec.podName", |request| text(request, "/spec/podName")),
        field("spec.nodeName", |request| text(request, "/spec/nodeName")),
    ],
    wording: Wording::Label,
};

static RESOURCE_SLICES: Fields = Fields {
    fields: &[
        NAME,
        field("spec.nodeName", |slice| text(slice, "/spec/nodeName")),
        field("spec.driver", |slice| text(slice, "/spec/driver")),
    ],
    wording: Wording::For("resource.k8s.io/v1, Kind=ResourceSlice"),
};

const fn field(name: &'static str, value: fn(&Value) -> Cow<'_, str>) -> SelectableField {
    SelectableField { name, value }
}

fn text<'a>(object: &'a Value, pointer: &str) -> Cow<'a, str> {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("").into()
}

/// The first of two fields that is not empty.
fn either<'a>(object: &'a Value, first: &str, second: &str) -> Cow<'a, str> {
    match text(object, first) {
        value if value.is_empty() => text(object, second),
        value => value,
    }
}

fn flag<'a>(object: &'a Value, pointer: &str) -> Cow<'a, str> {
    let set = object.pointer(pointer).and_then(Value::as_bool).unwrap_or(false);
    if set { "true".into() } else { "false".into() }
}

fn number<'a>(object: &'a Value, pointer: &str) -> Cow<'a, str> {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn refusals_are_worded_per_kind() {
        let cases = [
            ("", "v1", "pods", "spec.x", "field label not supported: spec.x"),
            ("", "v1", "nodes", "metadata.namespace", "field label not supported: metadata.namespace"),
            ("batch", "v1", "jobs", "a", "field label \"a\" not supported for Job"),
            (
                "resource.k8s.io",
                "v1",
                "resourceslices",
                "a",
                "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: a",
            ),
            (
                "apps",
                "v1",
                "replicasets",
                "status.replicas",
                "\"status.replicas\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
        ];
        for (group, version, resource, label, message) in cases {
            let refusal = find(group, version, resource, label).unwrap_err();
            assert_eq!(refusal.to_string(), message);
        }
    }

    #[test]
    fn objects_answer() {
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
            let field = find(group, "v1", resource, label).unwrap();
            assert_eq!((field.value)(object), value, "{resource} {label}");
        }
    }

    #[test]
    fn every_field_of_events_is_a_field_of_what_is_stored() {
        for field in EVENTS.fields {
            let stored = stored_name("events.k8s.io", field.name);
            assert!(CORE_EVENTS.fields.iter().any(|known| known.name == stored), "{}", field.name);
        }
    }
}
