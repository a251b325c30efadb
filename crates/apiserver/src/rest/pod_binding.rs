//! `pods/binding` and the older `bindings`: a pod gets its node.

use super::{Rest, Route};
use crate::admission::{Attributes, Operation};
use crate::decode::{self, Expected};
use crate::negotiate::{Accepted, content_type};
use crate::options::{WriteKind, WriteOptions};
use crate::registry::update::{Change, Door};
use crate::registry::{Served, WriteContext};
use crate::reply::{self, Reply};
use crate::serve::RequestBody;
use api::value::Fields;
use machinery::status::{Result, Status, aggregate_texts};
use machinery::{Value, meta};
use serde_json::json;
use std::sync::Arc;

impl Rest {
    /// Binds a pod. The name in the path has to be the binding's; the older resource has none.
    pub(super) async fn bind(
        &self,
        route: &Route<'_>,
        pods: &Arc<Served>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        let encoding = content_type(&context.headers, self.limits.cbor)?;
        let bytes = self.read_body(body).await?;
        let options = WriteOptions::read(&context.query, WriteKind::Create)?;
        let schema = api::schema::schema()
            .kind("", "v1", "Binding")
            .ok_or_else(|| Status::internal("no schema for Binding"))?;
        let expected = Expected { group: "", version: "v1", kind: "Binding", schema, default: |_| {} };
        let mut binding =
            decode::object(&bytes, encoding, expected, options.field_validation, &context.warnings)?;
        let write = WriteContext {
            subresource: "binding",
            namespace: &context.info.namespace,
            ..self.write_context(route, &options.field_manager, options.dry_run)
        };
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
        // Nothing of the pod but its node changes, and nobody owns that: neither rules nor managers apply.
        let door = Door { prepare: |_, _| {}, validate: |_, _| Vec::new(), counts_generation: false };
        self.registry
            .update(pods, &name, door, true, &write, |pod| {
                check_preconditions(&binding, pod)?;
                assign(&binding, pod)
                    .map(Change::Applied)
                    .map_err(|why| Status::conflict("", "pods/binding", &name, why))
            })
            .await?;
        reply::value(201, &success(), &Accepted { form: None, ..*accepted }, context)
    }
}

/// The Status that says that something was done.
pub(super) fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

fn check_preconditions(binding: &Value, pod: &Value) -> Result<()> {
    let differs = |wanted: &str, real: &str| !wanted.is_empty() && wanted != real;
    let (namespace, name) = (meta::namespace(pod), meta::name(pod));
    let refuse = |what: &str, wanted: &str, real: &str| {
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {real}"
        );
        Status::conflict("", "pods", name, why)
    };
    let (wanted, real) = (meta::uid(binding), meta::uid(pod));
    if differs(wanted, real) {
        return Err(refuse("UID", wanted, real));
    }
    let (wanted, real) = (meta::resource_version(binding), meta::resource_version(pod));
    if differs(wanted, real) {
        return Err(refuse("ResourceVersion", wanted, real));
    }
    Ok(())
}

/// The pod on its node, or why it cannot be there.
fn assign(binding: &Value, pod: &Value) -> Result<Value, String> {
    let name = meta::name(pod);
    if meta::deletion_timestamp(pod).is_some() {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = pod.field("spec").text("nodeName");
    if !node.is_empty() {
        return Err(format!("pod {name} is already assigned to node {node:?}"));
    }
    if !pod.field("spec").items("schedulingGates").is_empty() {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut new = pod.clone();
    new.child_mut("spec").set("nodeName", binding.field("target").text("name"));
    new.child_mut("status").unset("nominatedNodeName");
    for field in ["annotations", "labels"] {
        for (key, value) in binding.field("metadata").entries(field).into_iter().flatten() {
            new.child_mut("metadata").child_mut(field).set(key, value.clone());
        }
    }
    set_condition(&mut new, json!({"type": "PodScheduled", "status": "True"}));
    Ok(new)
}

/// Adds a condition to a pod, or replaces the one of its type; it remembers since when it has its status.
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

    #[test]
    fn a_pod_is_bound_once() {
        let binding = json!({"metadata": {"name": "p", "labels": {"zone": "z"}}, "target": {"name": "n"}});
        let bound = assign(&binding, &json!({"metadata": {"name": "p"}, "spec": {}})).expect("it is free");
        assert_eq!(
            (&bound["spec"]["nodeName"], &bound["metadata"]["labels"]["zone"]),
            (&json!("n"), &json!("z"))
        );
        assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
        assert_eq!(assign(&binding, &bound), Err(r#"pod p is already assigned to node "n""#.to_owned()));
        let gated = json!({"metadata": {"name": "p"}, "spec": {"schedulingGates": [{"name": "g"}]}});
        assert_eq!(assign(&binding, &gated), Err("pod p has non-empty .spec.schedulingGates".to_owned()));
    }
}
