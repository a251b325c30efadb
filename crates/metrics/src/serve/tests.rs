//! Requests against caches and points.

use super::*;
use crate::point::{Point, UNKNOWN_START};
use crate::record::RecordLabels;
use crate::storage::{NodeBatch, PodBatch};
use base::metrics::Metrics;
use http::header::ACCEPT;
use objects::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::time::Duration;

const SECOND: i64 = 1_000_000_000;
/// 2026-01-01T00:00:00Z.
const START: i64 = 1_767_225_600;
const BASE: &str = "/apis/metrics.k8s.io/v1beta1";

fn metadata(ns: Option<&str>, name: &str) -> ObjectMeta {
    let (namespace, name) = (ns.map(str::to_owned), Some(name.to_owned()));
    ObjectMeta { name, namespace, ..ObjectMeta::default() }
}

fn labels(all: &[(&str, &str)]) -> RecordLabels {
    all.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn pod(ns: &str, name: &str, all: &[(&str, &str)], node: &str) -> PodRecord {
    let (metadata, labels) = (metadata(Some(ns), name), labels(all));
    PodRecord { metadata, labels, node: node.to_owned(), ..PodRecord::default() }
}

fn point(second: i64, cpu: u64, memory: u64) -> Point {
    Point { start: UNKNOWN_START, at: (START + second) * SECOND, cpu, memory }
}

/// Two nodes, of which `n2` has one point; pods `a` and `b` on `n1`, and `c` without metrics.
fn api() -> Api {
    let clock = Clock::held_at(jiff::Timestamp::from_second(START + 100).expect("a time"));
    let storage = Arc::new(Storage::new(Duration::from_secs(15)));
    for (at, cpu) in [(0, 0), (20, 5 * SECOND.unsigned_abs())] {
        let containers =
            vec![("x".into(), point(at, 1 + cpu / 10, 1 << 20)), ("y".into(), point(at, 1 + cpu / 20, 3000))];
        let pods = ["a", "b"].map(|name| PodBatch {
            namespace: "ns".into(),
            name: name.into(),
            containers: containers.clone(),
        });
        let node = Some(point(at, 1 + cpu, 2 << 30));
        storage.store("n1", Some(NodeBatch { node, pods: pods.to_vec() }));
    }
    storage.store("n2", Some(NodeBatch { node: Some(point(0, 1, 1)), pods: Vec::new() }));
    let (pods, nodes) = (Cache::new(), Cache::new());
    pods.replace(vec![
        pod("ns", "b", &[("app", "web")], "n1"),
        pod("ns", "a", &[], "n1"),
        pod("ns", "c", &[], "n2"),
        // A pod that its node has no points of, but another node has.
        pod("other", "a", &[], "n2"),
    ]);
    let node = |name: &str, zone: &str| NodeRecord {
        metadata: metadata(None, name),
        labels: labels(&[("zone", zone)]),
        ..NodeRecord::default()
    };
    nodes.replace(vec![node("n1", "east"), node("n2", "west")]);
    let freshness = crate::scrape::freshness(&Metrics::new(&clock).expect("metrics")).expect("metrics");
    Api { storage, pods, nodes, clock, freshness }
}

fn ask_as(accept: &str, method: Method, path: &str) -> (u16, Value) {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, accept.parse().expect("a value"));
    let answer = api().answer(&method, &path.parse().expect("a uri"), &headers);
    (answer.status().as_u16(), serde_json::from_slice(answer.body()).expect("JSON"))
}

fn get(path: &str) -> (u16, Value) {
    ask_as("application/json", Method::GET, &format!("{BASE}/{path}"))
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn node_metrics_have_usage_window_and_labels() {
    let (code, node) = get("nodes/n1");
    assert_eq!(code, 200);
    assert_eq!(
        node,
        json!({
            "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
            "metadata": {"name": "n1", "creationTimestamp": "2026-01-01T00:01:40Z", "labels": {"zone": "east"}},
            "timestamp": "2026-01-01T00:00:20Z", "window": "20s", "usage": {"cpu": "250m", "memory": "2Gi"},
        })
    );
    let (code, list) = get("nodes");
    assert_eq!(
        (code, list["kind"].as_str(), names(&list)),
        (200, Some("NodeMetricsList"), vec!["n1".to_owned()])
    );
    assert!(list["items"][0].get("kind").is_none());
}

#[test]
fn pod_metrics_have_every_container() {
    let (code, pod) = get("namespaces/ns/pods/b");
    assert_eq!(code, 200);
    assert_eq!(pod["metadata"]["namespace"], "ns");
    assert_eq!(
        pod["containers"],
        json!([
            {"name": "x", "usage": {"cpu": "25m", "memory": "1Mi"}},
            {"name": "y", "usage": {"cpu": "12500u", "memory": "3000"}},
        ])
    );
    assert_eq!(names(&get("pods").1), ["a", "b"]);
    assert_eq!(names(&get("namespaces/other/pods").1), Vec::<String>::new());
}

#[test]
fn selectors_choose_items() {
    assert_eq!(names(&get("namespaces/ns/pods?labelSelector=app%3Dweb").1), ["b"]);
    assert_eq!(names(&get("pods?labelSelector=app%21%3Dweb").1), ["a"]);
    assert_eq!(names(&get("pods?fieldSelector=metadata.name%3Da").1), ["a"]);
    assert_eq!(names(&get("pods?fieldSelector=metadata.namespace%21%3Dns").1), Vec::<String>::new());
    assert_eq!(names(&get("nodes?labelSelector=zone%20in%20(west)").1), Vec::<String>::new());
    let (code, status) = get("pods?fieldSelector=spec.nodeName%3Dn1");
    assert_eq!(code, 400);
    assert_eq!(
        status["message"],
        "\"spec.nodeName\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    );
    assert_eq!(get("pods?labelSelector=%3D%3D").0, 400);
}

#[test]
fn missing_objects_and_missing_metrics_differ() {
    let message = |path: &str| {
        let (code, status) = get(path);
        assert_eq!(code, 404, "{path}");
        status["message"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(message("nodes/n3"), "nodes \"n3\" not found");
    assert_eq!(message("nodes/n2"), "nodes.metrics.k8s.io \"n2\" not found");
    assert_eq!(message("namespaces/ns/pods/d"), "pods \"d\" not found");
    assert_eq!(message("namespaces/ns/pods/c"), "pods.metrics.k8s.io \"ns/c\" not found");
    assert_eq!(get("services").0, 404);
    assert_eq!(get("namespaces/ns/pods/a/log").0, 404);
}

#[test]
fn other_verbs_are_refused() {
    let ask = |method: Method, path: &str| ask_as("application/json", method, &format!("{BASE}/{path}")).0;
    assert_eq!(ask(Method::DELETE, "nodes/n1"), 405);
    assert_eq!(ask(Method::POST, "namespaces/ns/pods"), 405);
    assert_eq!(ask(Method::GET, "pods?watch=true"), 405);
}

#[test]
fn tables_have_the_columns_of_metrics_server() {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let (code, table) = ask_as(accept, Method::GET, &format!("{BASE}/pods"));
    assert_eq!(
        (code, table["kind"].as_str(), table["apiVersion"].as_str()),
        (200, Some("Table"), Some("meta.k8s.io/v1"))
    );
    let columns: Vec<_> =
        table["columnDefinitions"].as_array().expect("columns").iter().map(|c| c["name"].clone()).collect();
    assert_eq!(columns, ["Name", "cpu", "memory", "Window"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "37500u", "1051576", "20s"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let (_, table) = ask_as(accept, Method::GET, &format!("{BASE}/nodes?includeObject=Object"));
    assert_eq!(table["rows"][0]["cells"], json!(["n1", "250m", "2Gi", "20s"]));
    assert_eq!(table["rows"][0]["object"]["usage"]["cpu"], "250m");
    assert_eq!(ask_as(accept, Method::GET, &format!("{BASE}/nodes?includeObject=x")).0, 400);
}

#[test]
fn discovery_and_openapi_are_served() {
    let (code, list) = get("");
    assert_eq!((code, list["resources"][1]["kind"].as_str()), (200, Some("PodMetrics")));
    let (code, document) = ask_as("application/json", Method::GET, "/openapi/v3/apis/metrics.k8s.io/v1beta1");
    assert_eq!(code, 200);
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    assert!(schemas.contains_key("io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics"));
    let path = |path: &str| document["paths"].get(format!("{BASE}{path}")).expect("a path");
    assert!(path("/namespaces/{namespace}/pods/{name}")["parameters"].is_array());
    assert!(path("/nodes").get("parameters").is_none(), "empty lists do not survive clients written in Go");
    assert_eq!(ask_as("application/json", Method::GET, "/apis/metrics.k8s.io").1["kind"], "APIGroup");
}
