//! Discovery documents.

use serde_json::{Value, json};

pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";
pub const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// A served resource.
#[derive(Clone, Copy, Debug)]
pub struct ServedResource {
    pub name: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    pub verbs: &'static [&'static str],
}

pub const RESOURCES: [ServedResource; 2] = [
    ServedResource { name: "nodes", kind: "NodeMetrics", namespaced: false, verbs: &["get", "list"] },
    ServedResource { name: "pods", kind: "PodMetrics", namespaced: true, verbs: &["get", "list"] },
];

/// The document at a path of a server that has this group alone.
pub fn document(path: &str) -> Option<Value> {
    let version = json!({"groupVersion": API_VERSION, "version": VERSION});
    let group = json!({"name": GROUP, "versions": [version.clone()], "preferredVersion": version});
    match path {
        "/apis" | "/apis/" => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})),
        "/apis/metrics.k8s.io" | "/apis/metrics.k8s.io/" => {
            let mut group = group;
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            Some(group)
        }
        "/apis/metrics.k8s.io/v1beta1" | "/apis/metrics.k8s.io/v1beta1/" => {
            let resource = |served: &ServedResource| {
                json!({"name": served.name, "singularName": "", "namespaced": served.namespaced, "kind": served.kind,
                    "verbs": served.verbs})
            };
            let resources: Vec<Value> = RESOURCES.iter().map(resource).collect();
            Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION,
                "resources": resources}))
        }
        _ => None,
    }
}
