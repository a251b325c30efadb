//! PodResizeValidator: rejects resizes that exceed the allocatable resources of the pod's node.

use super::resource_quota::pod_total;
use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::pod_spec::resources::quantity;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::{Cause, Result};

const NODES: (&str, &str, &str) = ("", "v1", "nodes");
const OS_LABEL: &str = "kubernetes.io/os";

pub struct PodResizeValidator;

#[async_trait]
impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update && attributes.is_subresource("", "pods", "resize")
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let (Some(new), Some(old)) = (object, old) else { return Ok(()) };
        let name = new.at("spec").text("nodeName");
        let unchanged = new.at("metadata.generation") == old.at("metadata.generation");
        if name.is_empty() || unchanged {
            return Ok(());
        }
        let Some(node) = registry.find(NODES, "", name).await? else {
            return Err(attributes.forbidden(format_args!("node {name:?} not found")));
        };
        check(new, &node, name).map_err(|ResizeRejection { why, reason }| {
            let mut status = attributes.forbidden(why);
            if let Some(details) = &mut status.details {
                details.causes.push(Cause { reason: reason.to_owned(), ..Cause::default() });
            }
            status
        })
    }
}

/// Reason why a pod cannot be resized on its node.
#[derive(Debug, PartialEq, Eq)]
struct ResizeRejection {
    why: String,
    reason: &'static str,
}

fn check(pod: &Value, node: &Value, name: &str) -> Result<(), ResizeRejection> {
    if let Some(os) = node.at("metadata.labels").opt_text(OS_LABEL).filter(|os| *os != "linux") {
        let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
        return Err(ResizeRejection { why, reason: "UnsupportedPlatform" });
    }
    let requests = pod_total(pod.field("spec"), "requests");
    let allocatable = node.at("status.allocatable");
    let mut missing = Vec::new();
    for resource in ["cpu", "memory"] {
        let there = quantity(allocatable.field(resource));
        let Some(wanted) = requests.get(resource).filter(|wanted| **wanted > there) else { continue };
        let [wanted, there] = [*wanted, there].map(|amount| match resource {
            "cpu" => amount.milli_value(),
            _ => amount.value(),
        });
        missing.push(format!("{resource}, requested: {wanted}, allocatable: {there}"));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let why = format!("node didn't have enough allocatable resources: {}", missing.join("; "));
    Err(ResizeRejection { why, reason: "NodeCapacity" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resize_beyond_node_capacity_is_rejected() {
        let pod = |cpu: &str, memory: &str| {
            json!({"spec": {"containers": [
                {"name": "a", "resources": {"requests": {"cpu": cpu}}},
                {"name": "b", "resources": {"requests": {"memory": memory}}},
            ]}})
        };
        let node = |os: &str| {
            json!({
                "metadata": {"labels": {"kubernetes.io/os": os}},
                "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}},
            })
        };
        let refusal = |why: &str, reason| Err(ResizeRejection { why: why.to_owned(), reason });
        assert_eq!(check(&pod("2", "1Gi"), &node("linux"), "n"), Ok(()));
        assert_eq!(
            check(&pod("2500m", "2Gi"), &node("linux"), "n"),
            refusal(
                "node didn't have enough allocatable resources: cpu, requested: 2500, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824",
                "NodeCapacity"
            )
        );
        assert_eq!(
            check(&pod("1", "1Mi"), &json!({"metadata": {}}), "n"),
            refusal(
                "node didn't have enough allocatable resources: cpu, requested: 1000, allocatable: 0; memory, requested: 1048576, allocatable: 0",
                "NodeCapacity"
            )
        );
        assert_eq!(
            check(&pod("1", "1Mi"), &node("windows"), "n"),
            refusal(
                "pod resize is only supported on linux nodes, node \"n\" is \"windows\"",
                "UnsupportedPlatform"
            )
        );
    }
}
