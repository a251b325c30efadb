//! Quota scopes: select the objects of a namespace that a quota counts.

use api::pod::qos;
use api::value::{Fields, texts};
use machinery::Value;
use serde_json::json;

/// Reports whether every scope of the quota matches the object.
pub fn matches(quota: &Value, resource: (&str, &str), object: &Value) -> bool {
    of(quota).iter().all(|scope| holds(scope, resource, object))
}

/// The scopes of a quota as selectors.
pub fn of(quota: &Value) -> Vec<Value> {
    let spec = quota.field("spec");
    let plain = texts(spec.items("scopes")).map(|scope| json!({"scopeName": scope, "operator": "Exists"}));
    plain.chain(spec.field("scopeSelector").items("matchExpressions").iter().cloned()).collect()
}

/// Reports whether a scope selector matches the object.
pub fn holds(scope: &Value, resource: (&str, &str), object: &Value) -> bool {
    let (name, operator, values) = (scope.text("scopeName"), scope.text("operator"), scope.items("values"));
    match resource {
        ("", "pods") => pod_is(object, name, operator, values),
        ("", "persistentvolumeclaims") => claim_is(object, name, operator, values),
        _ => false,
    }
}

/// A pod with an active deadline (scope `Terminating`).
pub fn is_terminating(pod: &Value) -> bool {
    pod.field("spec").opt_int("activeDeadlineSeconds").is_some_and(|seconds| seconds >= 0)
}

fn pod_is(pod: &Value, scope: &str, operator: &str, values: &[Value]) -> bool {
    let spec = pod.field("spec");
    match scope {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => qos::class(pod) == "BestEffort",
        "NotBestEffort" => qos::class(pod) != "BestEffort",
        "PriorityClass" => selects(&[spec.text("priorityClassName")], operator, values),
        "CrossNamespacePodAffinity" => reaches_other_namespaces(spec),
        _ => false,
    }
}

fn claim_is(claim: &Value, scope: &str, operator: &str, values: &[Value]) -> bool {
    let status = claim.field("status");
    let classes = [
        claim.field("spec").text("volumeAttributesClassName"),
        status.text("currentVolumeAttributesClassName"),
        status.field("modifyVolumeStatus").text("targetVolumeAttributesClassName"),
    ];
    scope == "VolumeAttributesClass" && selects(&classes, operator, values)
}

/// Reports whether one of the non-empty names matches the expression.
fn selects(names: &[&str], operator: &str, values: &[Value]) -> bool {
    let mut names = names.iter().filter(|name| !name.is_empty()).peekable();
    let listed = |name: &&&str| texts(values).any(|value| value == **name);
    match operator {
        "Exists" => names.peek().is_some(),
        "DoesNotExist" => names.peek().is_none(),
        "In" => names.any(|name| listed(&name)),
        // Invalid without values.
        "NotIn" if values.is_empty() => false,
        "NotIn" => names.peek().is_none() || names.any(|name| !listed(&name)),
        _ => false,
    }
}

fn reaches_other_namespaces(spec: &Value) -> bool {
    let reaches = |term: &Value| !term.items("namespaces").is_empty() || term.has("namespaceSelector");
    ["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let affinity = spec.field("affinity").field(kind);
        affinity.items("requiredDuringSchedulingIgnoredDuringExecution").iter().any(reaches)
            || affinity
                .items("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(|term| reaches(term.field("podAffinityTerm")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_match_vectors() {
        for vector in vectors::quota_scopes() {
            let matches = holds(&vector.scope, ("", &vector.resource), &vector.object);
            assert_eq!(matches, vector.matches, "{}", vector.name);
        }
    }

    #[test]
    fn quota_scopes_select_pods() {
        let pod =
            json!({"spec": {"priorityClassName": "high", "activeDeadlineSeconds": 5, "containers": []}});
        let selector = |operator: &str, values: Value| {
            json!({"spec": {"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": values},
            ]}}})
        };
        for (quota, want) in [
            (json!({"spec": {}}), true),
            (json!({"spec": {"scopes": ["Terminating", "BestEffort"]}}), true),
            (json!({"spec": {"scopes": ["NotTerminating"]}}), false),
            (selector("In", json!(["high"])), true),
            (selector("NotIn", json!(["high"])), false),
            (selector("Exists", json!([])), true),
            (selector("DoesNotExist", json!([])), false),
        ] {
            assert_eq!(matches(&quota, ("", "pods"), &pod), want, "{quota}");
        }
        assert!(!matches(&json!({"spec": {"scopes": ["BestEffort"]}}), ("", "services"), &json!({})));
    }
}
