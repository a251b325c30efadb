//! Resources of a pod's containers during a resize: the maximum of desired and allocated. A pending resize frees
//! nothing, and an infeasible one takes nothing.

use super::usage::{Amounts, amounts, show};
use api::pod_spec::is_sidecar;
use api::value::Fields;
use machinery::Value;
use std::borrow::Cow;

/// Pod spec with the resources that count.
pub fn effective_spec(pod: &Value) -> Cow<'_, Value> {
    let (spec, status) = (pod.field("spec"), pod.field("status"));
    let statuses = || status.items("containerStatuses").iter().chain(status.items("initContainerStatuses"));
    if !statuses().any(|status| status.has("resources")) {
        return Cow::Borrowed(spec);
    }
    let pending = status.items("conditions").iter().find(|each| each.text("type") == "PodResizePending");
    let infeasible = pending.is_some_and(|condition| condition.text("reason") == "Infeasible");
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in spec.items_mut(list) {
            if list == "initContainers" && !is_sidecar(container) {
                continue;
            }
            let status = statuses().find(|status| status.text("name") == container.text("name"));
            let Some(status) = status.filter(|status| status.has("resources")) else { continue };
            for which in ["requests", "limits"] {
                let mut most = Amounts::new();
                if !infeasible {
                    raise(&mut most, container.field("resources").field(which));
                }
                raise(&mut most, status.field("resources").field(which));
                if which == "requests" {
                    raise(&mut most, status.field("allocatedResources"));
                }
                container.child_mut("resources").set(which, show(&most));
            }
        }
    }
    Cow::Owned(spec)
}

fn raise(most: &mut Amounts, list: &Value) {
    for (name, amount) in amounts(list) {
        let slot = most.entry(name).or_insert(amount);
        *slot = amount.max(*slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn larger_of_desired_and_allocated_resources_counts() {
        let pod = |wanted: &str, actual: &str, reason: &str| {
            let resources = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
            json!({
                "spec": {"containers": [{"name": "c", "resources": resources(wanted)}]},
                "status": {
                    "conditions": [{"type": "PodResizePending", "reason": reason}],
                    "containerStatuses": [
                        {"name": "c", "resources": resources(actual), "allocatedResources": {"cpu": actual}},
                    ],
                },
            })
        };
        for (wanted, actual, reason, want) in [
            ("1", "2", "Deferred", "2"),
            ("3", "2", "Deferred", "3"),
            ("3", "2", "Infeasible", "2"),
            ("1", "1", "", "1"),
        ] {
            let pod = pod(wanted, actual, reason);
            let resources = &effective_spec(&pod)["containers"][0]["resources"];
            assert_eq!(resources["requests"]["cpu"], want, "{pod}");
            assert_eq!(resources["limits"]["cpu"], want, "{pod}");
        }
        let fresh = json!({"spec": {"containers": [{"name": "c"}]}});
        assert!(matches!(effective_spec(&fresh), Cow::Borrowed(_)));
    }
}
