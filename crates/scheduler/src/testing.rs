//! Builders of pods and nodes for tests.

use std::sync::Arc;

use objects::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::state::{Cluster, PodInfo};

pub struct PodBuilder(Value);

/// A pod of namespace `default` whose uid is its name.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {}},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "resources": {"requests": {}}}]},
        "status": {},
    }))
}

impl PodBuilder {
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    pub fn namespace(mut self, name: &str) -> Self {
        self.0["metadata"]["namespace"] = json!(name);
        self
    }

    pub fn on(mut self, node: &str) -> Self {
        self.0["spec"]["nodeName"] = json!(node);
        self
    }

    pub fn cpu(self, amount: &str) -> Self {
        self.request("cpu", amount)
    }

    pub fn request(mut self, name: &str, amount: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"]["requests"][name] = json!(amount);
        self
    }

    pub fn priority(self, priority: i32) -> Self {
        self.spec(json!({"priority": priority}))
    }

    pub fn metadata(mut self, fields: Value) -> Self {
        merge(&mut self.0["metadata"], fields);
        self
    }

    pub fn spec(mut self, fields: Value) -> Self {
        merge(&mut self.0["spec"], fields);
        self
    }

    pub fn status(mut self, fields: Value) -> Self {
        merge(&mut self.0["status"], fields);
        self
    }

    pub fn arc(self) -> Arc<Pod> {
        Arc::new(serde_json::from_value(self.0).expect("a pod"))
    }

    pub fn info(self) -> Arc<PodInfo> {
        Arc::new(PodInfo::new(self.arc()))
    }
}

pub struct NodeBuilder(Value);

/// Node with ten CPUs, 64 GiB of memory and a limit of 110 pods.
pub fn node(name: &str) -> NodeBuilder {
    NodeBuilder(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"cpu": "10", "memory": "64Gi", "pods": "110"}},
    }))
}

impl NodeBuilder {
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    pub fn no_labels(mut self) -> Self {
        self.0["metadata"]["labels"] = json!({});
        self
    }

    pub fn allocatable(mut self, amounts: Value) -> Self {
        self.0["status"]["allocatable"] = amounts;
        self
    }

    pub fn taint(self, key: &str, effect: &str) -> Self {
        self.spec(json!({"taints": [{"key": key, "effect": effect}]}))
    }

    pub fn spec(mut self, fields: Value) -> Self {
        merge(&mut self.0["spec"], fields);
        self
    }

    pub fn status(mut self, fields: Value) -> Self {
        merge(&mut self.0["status"], fields);
        self
    }

    pub fn arc(self) -> Arc<Node> {
        Arc::new(serde_json::from_value(self.0).expect("a node"))
    }
}

fn merge(into: &mut Value, fields: Value) {
    if let Value::Object(fields) = fields {
        for (key, value) in fields {
            into[key] = value;
        }
    }
}

/// Cluster with these nodes and placed pods.
pub fn cluster(
    nodes: impl IntoIterator<Item = NodeBuilder>,
    pods: impl IntoIterator<Item = PodBuilder>,
) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.set_node(node.arc());
    }
    for pod in pods {
        cluster.set_pod(pod.info());
    }
    cluster.refresh();
    cluster
}
