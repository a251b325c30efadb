//! One APIService per group and version that this server has itself.

use super::{Wanted, condition};
use serde_json::json;

/// Group, version, and where they stand among the others.
const LOCAL: [(&str, &str, i64, i64); 21] = [
    ("", "v1", 18000, 1),
    ("admissionregistration.k8s.io", "v1", 16700, 15),
    ("apiextensions.k8s.io", "v1", 16700, 15),
    ("apps", "v1", 17800, 15),
    ("authentication.k8s.io", "v1", 17700, 15),
    ("authorization.k8s.io", "v1", 17600, 15),
    ("autoscaling", "v1", 17500, 15),
    ("autoscaling", "v2", 17500, 30),
    ("batch", "v1", 17400, 15),
    ("certificates.k8s.io", "v1", 17300, 15),
    ("coordination.k8s.io", "v1", 16500, 15),
    ("discovery.k8s.io", "v1", 16200, 15),
    ("events.k8s.io", "v1", 17750, 15),
    ("flowcontrol.apiserver.k8s.io", "v1", 16100, 21),
    ("networking.k8s.io", "v1", 17200, 15),
    ("node.k8s.io", "v1", 16300, 15),
    ("policy", "v1", 17100, 15),
    ("rbac.authorization.k8s.io", "v1", 17000, 15),
    ("resource.k8s.io", "v1", 16200, 21),
    ("scheduling.k8s.io", "v1", 16600, 15),
    ("storage.k8s.io", "v1", 16800, 15),
];

pub fn objects() -> impl Iterator<Item = Wanted> {
    LOCAL.iter().map(|(group, version, group_priority, version_priority)| {
        let mut object = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {
                "name": format!("{version}.{group}"),
                "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
            },
            "spec": {
                "version": version,
                "groupPriorityMinimum": group_priority, "versionPriority": version_priority,
            },
            "status": {"conditions": [
                condition("Available", "True", "Local", "Local APIServices are always available"),
            ]},
        });
        if !group.is_empty() {
            object["spec"]["group"] = (*group).into();
        }
        Wanted::new(("apiregistration.k8s.io", "v1", "apiservices"), object)
    })
}
