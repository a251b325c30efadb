//! One APIService per group version served by this server.

use super::{BootstrapObject, condition};
use crate::discovery::Discovery;
use api::resources::{PRIORITIES, Priority};
use serde_json::json;

pub fn objects(discovery: &Discovery) -> impl Iterator<Item = BootstrapObject> {
    // The group of APIServices has none.
    let local = PRIORITIES.iter().filter(|row| row.group != "apiregistration.k8s.io");
    let is_served =
        |row: &&Priority| discovery.versions_of(row.group).iter().any(|shown| shown.version == row.version);
    let local = local.filter(is_served);
    local.map(|row| {
        let (group, version) = (row.group, row.version);
        let mut object = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {
                "name": format!("{version}.{group}"),
                "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
            },
            "spec": {
                "version": version,
                "groupPriorityMinimum": row.group_minimum, "versionPriority": row.version_priority,
            },
            "status": {"conditions": [
                condition("Available", "True", "Local", "Local APIServices are always available"),
            ]},
        });
        if !group.is_empty() {
            object["spec"]["group"] = group.into();
        }
        BootstrapObject::new(("apiregistration.k8s.io", "v1", "apiservices"), object)
    })
}
