//! `pods/binding` and the legacy `bindings`: assigns a pod to a node.
//!
//! A binding edits the stored bytes instead of taking the path of updates: decoding, validating and encoding the whole pod
//! was a quarter of the API server's CPU time while pods are scheduled (`docs/performance.md`).

use crate::admission::{Attributes, Operation};
use crate::registry::{Served, WriteContext};
use crate::rest::reviews::ensure_namespace;
use crate::rest::{Rest, Route};
use crate::serve::RequestBody;
use crate::stored_form::{Members, Prefix};
use crate::wire::decode::Expected;
use crate::wire::negotiate::Accepted;
use crate::wire::options::WriteKind;
use crate::wire::reply::{self, Reply};
use api::value::Fields;
use bytes::Bytes;
use machinery::status::{Result, Status, aggregate_texts};
use machinery::{Value, meta};
use serde_json::json;
use serde_json::value::RawValue;
use std::sync::Arc;

impl Rest {
    /// Binds a pod. The name in the path must equal the binding's; the legacy resource has none in the path.
    pub(in crate::rest) async fn bind(
        &self,
        route: &Route<'_>,
        pods: &Arc<Served>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        let expected = Expected::unstored("", "v1", "Binding")?;
        let (options, mut binding) = self.read_unstored(context, body, WriteKind::Create, expected).await?;
        let write = WriteContext {
            subresource: "binding",
            namespace: &context.info.namespace,
            ..self.write_context(route, &options.field_manager, options.dry_run)
        };
        ensure_namespace(&mut binding, write.namespace)?;
        let name = meta::name(&binding).to_owned();
        let attributes = Attributes::new(pods, &write, Operation::Create).named(&name);
        self.registry.admission.mutate(&self.registry, &attributes, Some(&mut binding), None).await?;
        if !context.info.name.is_empty() && context.info.name != name {
            return Err(Status::bad_request("name in URL does not match name in Binding object"));
        }
        let errors = api::kinds::pod::validate_binding(&binding);
        if !errors.is_empty() {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            return Err(Status::new(500, "", aggregate_texts(&texts)));
        }
        self.registry.admission.validate(&self.registry, &attributes, Some(&binding), None).await?;
        if name.is_empty() {
            return Err(Status::bad_request("Name parameter required."));
        }
        let problems = machinery::names::path_segment_name(&name, false);
        if !problems.is_empty() {
            let (name, why) = (machinery::field::show_str(&name), problems.join(";"));
            return Err(Status::bad_request(format!("Name parameter invalid: {name}: {why}")));
        }
        // Only unowned fields change, so neither validation nor field management applies.
        let layout = &pods.storage.cache.layout;
        let refused = |why| Status::conflict("", "pods/binding", &name, why);
        self.registry
            .edit(pods, &name, &write, |entry| {
                let pod = StoredPod::read(&entry.bytes)?;
                check_preconditions(&binding, &pod, entry.revision, (write.namespace, &name))?;
                pod.assigned(&binding, &name, &layout.prefix).map_err(refused)
            })
            .await?;
        reply::value(201, &success(), &Accepted { form: None, ..*accepted }, context)
    }
}

/// Status of a successful request.
pub(super) fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// A stored pod, parsed as far as a binding needs it; everything else stays raw JSON.
#[derive(serde::Deserialize)]
struct StoredPod<'a> {
    #[serde(borrow)]
    metadata: Members<'a>,
    #[serde(borrow, default)]
    spec: Members<'a>,
    #[serde(borrow, default)]
    status: Members<'a>,
}

impl<'a> StoredPod<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(Status::internal)
    }

    /// Stored form of the pod with its node, or the reason for the conflict.
    fn assigned(self, binding: &Value, name: &str, prefix: &Prefix) -> Result<Bytes, String> {
        // Rebound, so that the parts may borrow from this call.
        let StoredPod { mut metadata, mut spec, mut status } = self;
        if !text(&metadata, "deletionTimestamp").is_empty() {
            return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        let node = text(&spec, "nodeName");
        if !node.is_empty() {
            return Err(format!("pod {name} is already assigned to node {node:?}"));
        }
        if spec.get("schedulingGates").is_some_and(|gates| !matches!(gates.get(), "null" | "[]")) {
            return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        let mut merged = Vec::new();
        for field in ["annotations", "labels"] {
            let added = binding.field("metadata").entries(field);
            if let Some(added) = added.filter(|added| !added.is_empty()) {
                let mut all = value(&metadata, field);
                for (key, value) in added {
                    all.set(key, value.clone());
                }
                merged.push((field, raw(&all)?));
            }
        }
        let mut pod = json!({"status": {"conditions": value(&status, "conditions")}});
        set_condition(&mut pod, json!({"type": "PodScheduled", "status": "True"}));
        let conditions = raw(pod.field("status").field("conditions"))?;
        let node = raw(binding.field("target").field("name"))?;
        metadata.extend(merged.iter().map(|(field, text)| ((*field).to_owned(), &**text)));
        spec.insert("nodeName".to_owned(), &node);
        status.remove("nominatedNodeName");
        status.insert("conditions".to_owned(), &conditions);
        Ok(prefix.encode_parts(&metadata, &[("spec", &spec), ("status", &status)]))
    }
}

/// A string member; empty if it is missing or no string.
fn text(members: &Members<'_>, key: &str) -> String {
    member(members, key)
}

fn value(members: &Members<'_>, key: &str) -> Value {
    member(members, key)
}

fn member<T: serde::de::DeserializeOwned + Default>(members: &Members<'_>, key: &str) -> T {
    members.get(key).and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
}

fn raw(value: &Value) -> Result<Box<RawValue>, String> {
    serde_json::value::to_raw_value(value).map_err(|error| error.to_string())
}

fn check_preconditions(
    binding: &Value,
    pod: &StoredPod<'_>,
    revision: u64,
    (namespace, name): (&str, &str),
) -> Result<()> {
    for (what, wanted, real) in [
        ("UID", meta::uid(binding), text(&pod.metadata, "uid")),
        ("ResourceVersion", meta::resource_version(binding), revision.to_string()),
    ] {
        if !wanted.is_empty() && wanted != real {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {real}"
            );
            return Err(Status::conflict("", "pods", name, why));
        }
    }
    Ok(())
}

/// Adds or replaces the pod condition of its type; keeps `lastTransitionTime` if the status is the same.
pub(super) fn set_condition(pod: &mut Value, mut condition: Value) {
    let mut conditions = pod.field("status").items("conditions").to_vec();
    let same = conditions.iter().position(|old| old.field("type") == condition.field("type"));
    let since = same
        .map(|at| &conditions[at])
        .filter(|old| old.field("status") == condition.field("status"))
        .map(|old| old.field("lastTransitionTime").clone());
    condition.set("lastProbeTime", Value::Null);
    condition.set("lastTransitionTime", since.unwrap_or_else(|| crate::registry::metadata::now().into()));
    match same {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    pod.child_mut("status").set("conditions", conditions);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(binding: &Value, pod: &Value) -> Result<Value, String> {
        let prefix = Prefix::new("v1", "Pod");
        let stored = prefix.encode(pod);
        let bytes = StoredPod::read(&stored).expect("a pod").assigned(binding, "p", &prefix)?;
        assert!(prefix.fits(&bytes));
        Ok(serde_json::from_slice(&bytes).expect("an object"))
    }

    #[test]
    fn pod_is_bound_once() {
        let binding = json!({"metadata": {"name": "p", "labels": {"zone": "z"}}, "target": {"name": "n"}});
        let free = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"a": "b"}, "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i \u{e9} \""}], "zzz": 1},
            "status": {"phase": "Pending", "nominatedNodeName": "m", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}});
        let mut bound = bind(&binding, &free).expect("it is free");
        let since = bound["status"]["conditions"][0]["lastTransitionTime"].take();
        assert!(since.is_string());
        assert_eq!(
            bound,
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "labels": {"a": "b", "zone": "z"}, "uid": "u"},
                "spec": {"containers": [{"name": "c", "image": "i \u{e9} \""}], "nodeName": "n", "zzz": 1},
                "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True",
                    "lastProbeTime": null, "lastTransitionTime": null}]}})
        );
        assert_eq!(bind(&binding, &bound), Err(r#"pod p is already assigned to node "n""#.to_owned()));
    }

    #[test]
    fn gated_or_deleted_pod_is_not_bound() {
        let binding = json!({"metadata": {"name": "p"}, "target": {"name": "n"}});
        for (pod, why) in [
            (
                json!({"metadata": {}, "spec": {"schedulingGates": [{"name": "g"}]}}),
                "pod p has non-empty .spec.schedulingGates",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}),
                "pod p is being deleted, cannot be assigned to a host",
            ),
        ] {
            assert_eq!(bind(&binding, &pod), Err(why.to_owned()));
        }
        assert!(bind(&binding, &json!({"metadata": {}, "spec": {"schedulingGates": []}})).is_ok());
    }

    /// The stored bytes must equal those of a whole-object write.
    #[test]
    fn bound_pod_has_canonical_stored_form() {
        let schema = api::schema::schema().kind("", "v1", "Pod").expect("a schema");
        let binding = json!({"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"name": "n"}});
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "creationTimestamp": null},
            "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {}});
        (api::kinds::pod::KIND.default)(&mut pod);
        let normal = |object: &Value| {
            let mut object = object.clone();
            machinery::codec::typed::normalize_for_storage(&mut object, schema).expect("a pod");
            object
        };
        let bound = bind(&binding, &normal(&pod)).expect("it is free");
        assert_eq!(normal(&bound), bound);
        assert_eq!(bound["spec"]["nodeName"], "n");
    }

    #[test]
    fn binding_preconditions_must_match_pod() {
        let pod = Prefix::new("v1", "Pod").encode(&json!({"metadata": {"name": "p", "uid": "u"}}));
        let pod = StoredPod::read(&pod).expect("a pod");
        for (metadata, fits) in [
            (json!({}), true),
            (json!({"uid": "u", "resourceVersion": "7"}), true),
            (json!({"uid": "v"}), false),
            (json!({"resourceVersion": "8"}), false),
        ] {
            let checked = check_preconditions(&json!({"metadata": metadata}), &pod, 7, ("n", "p"));
            assert_eq!(checked.is_ok(), fits, "{metadata}");
        }
    }
}
