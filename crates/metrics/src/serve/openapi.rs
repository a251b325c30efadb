//! OpenAPI documents of the group version.

use super::discovery::{API_VERSION, GROUP, RESOURCES, VERSION};
use serde_json::{Map, Value, json};

const PREFIX: &str = "io.k8s.metrics.pkg.apis.metrics.v1beta1.";
const V3: &str = "/openapi/v3/apis/metrics.k8s.io/v1beta1";

/// The document at a path.
pub fn document(path: &str) -> Option<Value> {
    match path {
        "/openapi/v3" => Some(json!({"paths": {"apis/metrics.k8s.io/v1beta1": {"serverRelativeURL": V3}}})),
        V3 => {
            let schemas = schemas("#/components/schemas/");
            Some(
                json!({"openapi": "3.0.0", "info": info(), "paths": paths(), "components": {"schemas": schemas}}),
            )
        }
        "/openapi/v2" => Some(
            json!({"swagger": "2.0", "info": info(), "paths": {}, "definitions": schemas("#/definitions/")}),
        ),
        _ => None,
    }
}

fn info() -> Value {
    json!({"title": "Kubernetes metrics-server", "version": VERSION})
}

fn schemas(references: &str) -> Map<String, Value> {
    let kind = |name: &str| json!([{"group": GROUP, "version": VERSION, "kind": name}]);
    let text = |description: &str| json!({"type": "string", "description": description});
    let usage = json!({
        "type": "object", "additionalProperties": {"type": "string"},
        "description": "The memory usage is the memory working set.",
    });
    let time = json!({
        "type": "string", "format": "date-time",
        "description": "End of the interval from which metrics were collected: [Timestamp-Window, Timestamp].",
    });
    let window = text("Length of the interval from which metrics were collected.");
    let own = |name: &str| json!({"$ref": format!("{references}{PREFIX}{name}")});
    let containers = json!({
        "type": "array", "items": own("ContainerMetrics"),
        "description": "Metrics for all containers are collected within the same time window.",
    });
    let typed = |name: &str, mut properties: Value, required: Value| {
        properties["apiVersion"] =
            text("APIVersion defines the versioned schema of this representation of an object.");
        properties["kind"] =
            text("Kind is a string value representing the REST resource this object represents.");
        properties["metadata"] = json!({"type": "object"});
        json!({"type": "object", "properties": properties, "required": required,
            "x-kubernetes-group-version-kind": kind(name)})
    };
    let list = |name: &str, item: &str| {
        typed(name, json!({"items": {"type": "array", "items": own(item)}}), json!(["items"]))
    };
    let node = json!({"timestamp": time, "window": window, "usage": usage});
    let pod = json!({"timestamp": time, "window": window, "containers": containers});
    let container = json!({
        "type": "object", "description": "ContainerMetrics sets resource usage metrics of a container.",
        "properties": {"name": text("Container name corresponding to the one from pod.spec.containers."), "usage": usage},
        "required": ["name", "usage"],
    });
    [
        ("ContainerMetrics", container),
        ("NodeMetrics", typed("NodeMetrics", node, json!(["timestamp", "window", "usage"]))),
        ("NodeMetricsList", list("NodeMetricsList", "NodeMetrics")),
        ("PodMetrics", typed("PodMetrics", pod, json!(["timestamp", "window", "containers"]))),
        ("PodMetricsList", list("PodMetricsList", "PodMetrics")),
    ]
    .into_iter()
    .map(|(name, schema)| (format!("{PREFIX}{name}"), schema))
    .collect()
}

fn paths() -> Map<String, Value> {
    let parameter =
        |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let operation = |kind: &str, action: &str, item: &str, parameters: Vec<Value>| {
        let schema = json!({"$ref": format!("#/components/schemas/{PREFIX}{item}")});
        let mut item = json!({"get": {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": kind},
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
        }});
        // Clients that decode and encode a document leave out empty lists.
        if !parameters.is_empty() {
            item["parameters"] = parameters.into();
        }
        item
    };
    let mut paths = Map::new();
    for served in RESOURCES {
        let list = format!("{}List", served.kind);
        let (base, ns) = if served.namespaced {
            (
                format!("/apis/{API_VERSION}/namespaces/{{namespace}}/{}", served.name),
                vec![parameter("namespace")],
            )
        } else {
            (format!("/apis/{API_VERSION}/{}", served.name), Vec::new())
        };
        paths.insert(base.clone(), operation(served.kind, "list", &list, ns.clone()));
        let named = ns.into_iter().chain([parameter("name")]).collect();
        paths.insert(format!("{base}/{{name}}"), operation(served.kind, "get", served.kind, named));
        if served.namespaced {
            let all = format!("/apis/{API_VERSION}/{}", served.name);
            paths.insert(all, operation(served.kind, "list", &list, Vec::new()));
        }
    }
    paths
}
