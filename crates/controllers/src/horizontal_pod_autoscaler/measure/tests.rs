//! Metrics against a small API server that has the responses of a test.

use super::*;
use crate::shared::fixture::{at, pod, ready_at, time};
use bytes::Bytes;
use client::{Call, Transport};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use jiff::SignedDuration;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Responses by path, without the query; other paths are not found. Keeps the paths of requests.
struct Served {
    responses: Vec<(&'static str, Value)>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Transport for Served {
    fn call(&self, request: Request<Bytes>) -> Call<'_> {
        let path = request.uri().path().to_owned();
        let found = self.responses.iter().find(|(own, _)| *own == path).map(|(_, body)| body.clone());
        self.requests.lock().push(request.uri().to_string());
        let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
            "reason": "NotFound", "message": "the server could not find the requested resource"});
        let code = if found.is_some() { 200 } else { 404 };
        let body = Full::new(Bytes::from(found.unwrap_or(missing).to_string()));
        Box::pin(async move {
            let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
            *response.status_mut() = http::StatusCode::from_u16(code).expect("a status");
            Ok(response)
        })
    }
}

const RESOURCE: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods";

/// Running and ready pods with containers `app` and `side` that request a core and 100Mi each.
fn pods(ready: usize, unready: usize) -> Vec<Arc<Pod>> {
    let make = |number: usize| {
        let mut pod = pod(&format!("p{number}"), "Running");
        let resources = json!({"requests": {"cpu": "1", "memory": "100Mi"}});
        pod.spec = serde_json::from_value(json!({"containers": [
            {"name": "app", "resources": resources}, {"name": "side", "resources": resources}]}))
        .expect("a spec");
        pod.status.get_or_insert_default().start_time = Some(time(0));
        Arc::new(if number < ready { ready_at(pod, 1) } else { pod })
    };
    (0..ready + unready).map(make).collect()
}

/// Metrics of pods, of their containers `app` and `side`.
fn usage(all: &[[(&str, &str); 2]]) -> Value {
    let items = all.iter().enumerate().map(|(number, [app, side])| {
        let container = |name: &str, (cpu, memory): &(&str, &str)| {
            json!({"name": name, "usage": {"cpu": cpu, "memory": memory}})
        };
        json!({"metadata": {"name": format!("p{number}")}, "timestamp": at(10_000).to_string(), "window": "30s",
            "containers": [container("app", app), container("side", side)]})
    });
    json!({"items": items.collect::<Vec<_>>()})
}

async fn measure(
    responses: Vec<(&'static str, Value)>,
    pods: &[Arc<Pod>],
    tolerance: (f64, f64),
    metric: Value,
) -> (Result<Recommendation, MeasureError>, Vec<String>) {
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let served = Served { responses, requests: Arc::clone(&requests) };
    let client = Client::new(Arc::new(served), "test");
    let replicas = i32::try_from(pods.len()).expect("few");
    let measurement = Measurement {
        client: &client,
        namespace: "ns",
        replicas,
        observed: replicas,
        selector: "app=web",
        pods,
        tolerance: Tolerance {
            down: tolerance.0,
            up: tolerance.1,
            cpu_initialization: SignedDuration::from_secs(300),
            readiness_delay: SignedDuration::from_secs(30),
        },
        now: at(10_000),
    };
    let spec: MetricSpec = serde_json::from_value(metric).expect("a metric");
    let found = measurement.of(&spec).await;
    let requests = requests.lock().clone();
    (found, requests)
}

const USUAL: (f64, f64) = (0.1, 0.1);

fn value_of(recommendation: &Recommendation) -> Value {
    serde_json::to_value(&recommendation.status).expect("JSON")
}

#[tokio::test]
async fn container_resource_counts_the_named_container_only() {
    let list = usage(&[[("2", "1Mi"), ("10m", "1Mi")], [("2", "1Mi"), ("10m", "1Mi")]]);
    let metric = json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "app",
        "target": {"type": "Utilization", "averageUtilization": 100}}});
    let (found, _) = measure(vec![(RESOURCE, list.clone())], &pods(2, 0), USUAL, metric).await;
    let found = found.expect("a recommendation");
    assert_eq!(
        (found.replicas, found.name.as_str()),
        (4, "cpu container resource utilization (percentage of request)")
    );
    assert_eq!(
        value_of(&found),
        json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "app",
            "current": {"averageUtilization": 200, "averageValue": "2"}}})
    );
    let metric = json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "none",
        "target": {"type": "Utilization", "averageUtilization": 100}}});
    let error =
        measure(vec![(RESOURCE, list)], &pods(2, 0), USUAL, metric).await.0.expect_err("no container");
    assert_eq!(error.reason, "FailedGetContainerResourceMetric");
    assert_eq!(
        error.message,
        "failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)"
    );
}

#[tokio::test]
async fn memory_is_measured_against_its_target() {
    let list = usage(&[[("1m", "150Mi"), ("1m", "150Mi")]]);
    let of = |target: Value| json!({"type": "Resource", "resource": {"name": "memory", "target": target}});
    let relative = of(json!({"type": "Utilization", "averageUtilization": 50}));
    let found = measure(vec![(RESOURCE, list.clone())], &pods(1, 0), USUAL, relative).await.0.expect("found");
    assert_eq!(
        (found.replicas, found.name.as_str()),
        (3, "memory resource utilization (percentage of request)")
    );
    assert_eq!(
        value_of(&found)["resource"]["current"],
        json!({"averageUtilization": 150, "averageValue": "300Mi"})
    );
    let absolute = of(json!({"type": "AverageValue", "averageValue": "200Mi"}));
    let found = measure(vec![(RESOURCE, list)], &pods(1, 0), USUAL, absolute).await.0.expect("found");
    assert_eq!((found.replicas, found.name.as_str()), (2, "memory resource"));
}

#[tokio::test]
async fn tolerance_differs_by_direction() {
    let metric = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 50}}});
    for (tolerance, cpu, expected) in [
        // Used are 60 % and 40 % of the requests: ratios of 1.2 and 0.8.
        ((0.1, 0.1), "600m", 5),
        ((0.1, 0.3), "600m", 4),
        ((0.3, 0.1), "600m", 5),
        ((0.1, 0.3), "350m", 3),
        ((0.3, 0.1), "350m", 4),
    ] {
        let list = usage(&[[(cpu, "1Mi"), (cpu, "1Mi")]; 4]);
        let found = measure(vec![(RESOURCE, list)], &pods(4, 0), tolerance, metric.clone()).await.0;
        assert_eq!(found.expect("found").replicas, expected, "{tolerance:?} {cpu}");
    }
}

#[tokio::test]
async fn unready_pods_do_not_count_as_loaded() {
    let metric = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 50}}});
    let list = usage(&[[("1", "1Mi"), ("1", "1Mi")]; 4]);
    let of = |ready, unready| {
        measure(
            vec![(RESOURCE, list.clone())],
            &*Box::leak(pods(ready, unready).into()),
            USUAL,
            metric.clone(),
        )
    };
    assert_eq!(of(4, 0).await.0.expect("found").replicas, 8);
    assert_eq!(of(2, 2).await.0.expect("found").replicas, 4, "the other two count as idle");
    assert!(of(0, 4).await.0.expect_err("no pod is ready").message.contains("did not receive metrics"));
}

fn discovery() -> [(&'static str, Value); 2] {
    let resource = |name: &str, kind: &str, scope: &str| json!({"resource": name, "responseKind": {"kind": kind}, "scope": scope, "verbs": ["get"]});
    let core = [
        resource("namespaces", "Namespace", "Cluster"),
        resource("nodes", "Node", "Cluster"),
        resource("services", "Service", "Namespaced"),
    ];
    let networking = [resource("ingresses", "Ingress", "Namespaced")];
    [
        ("/api", json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": core}]}]})),
        (
            "/apis",
            json!({"items": [{"metadata": {"name": "networking.k8s.io"},
                "versions": [{"version": "v1", "resources": networking}]}]}),
        ),
    ]
}

fn object(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"type": "Object", "object": {"metric": {"name": "hits"},
        "describedObject": {"apiVersion": api_version, "kind": kind, "name": name},
        "target": {"type": "Value", "value": "10"}}})
}

#[tokio::test]
async fn object_metric_stays_in_the_namespace_of_the_autoscaler() {
    let base = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns";
    for (api_version, kind, name, path) in [
        ("v1", "Namespace", "kube-system", "/metrics/hits"),
        ("", "Namespace", "kube-system", "/metrics/hits"),
        ("v1", "Service", "web", "/services/web/hits"),
        ("v1", "Node", "n1", "/nodes/n1/hits"),
        ("networking.k8s.io/v1", "Ingress", "front", "/ingresses.networking.k8s.io/front/hits"),
    ] {
        let path: &'static str = Box::leak(format!("{base}{path}").into());
        let mut responses = vec![(path, json!({"items": [{"value": "30"}]}))];
        responses.extend(discovery());
        let (found, requests) = measure(responses, &pods(2, 0), USUAL, object(api_version, kind, name)).await;
        assert_eq!(found.expect(kind).replicas, 6, "{requests:?}");
    }
    let unknown = object("v1", "Widget", "w");
    let (error, requests) = measure(discovery().into(), &pods(2, 0), USUAL, unknown).await;
    let error = error.expect_err("no such kind");
    assert!(
        error.message.contains("unable to map kind Widget to resource: no matches for kind"),
        "{error:?}"
    );
    assert!(requests.iter().all(|path| !path.contains("custom.metrics")), "{requests:?}");
}

#[tokio::test]
async fn absent_or_wrong_values_fail_the_metric() {
    let path = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/services/web/hits";
    for item in [
        json!({}),
        json!({"value": null}),
        json!({"value": ""}),
        json!({"value": "many"}),
        json!({"value": {}}),
    ] {
        let mut responses = vec![(path, json!({"items": [item]}))];
        responses.extend(discovery());
        let error = measure(responses, &pods(2, 0), USUAL, object("v1", "Service", "web")).await.0;
        let error = error.expect_err("not an idle service");
        assert_eq!(error.reason, "FailedGetObjectMetric");
        assert!(error.message.contains("a value is missing or is not a quantity"), "{error:?}");
        let external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/depth";
        let metric = json!({"type": "External", "external": {"metric": {"name": "depth"},
            "target": {"type": "Value", "value": "10"}}});
        let responses = vec![(external, json!({"items": [{"value": "1"}, item]}))];
        let error = measure(responses, &pods(2, 0), USUAL, metric).await.0.expect_err("not a sum");
        assert_eq!(error.reason, "FailedGetExternalMetric");
        let of_pods = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/*/hits";
        let metric = json!({"type": "Pods", "pods": {"metric": {"name": "hits"},
            "target": {"type": "AverageValue", "averageValue": "10"}}});
        let mut item = item;
        item["describedObject"] = json!({"name": "p0"});
        let responses = vec![(of_pods, json!({"items": [item]}))];
        let error = measure(responses, &pods(2, 0), USUAL, metric).await.0.expect_err("not idle pods");
        assert_eq!(error.reason, "FailedGetPodsMetric");
    }
    for items in [json!([]), json!([{"value": "1"}, {"value": "2"}])] {
        let mut responses = vec![(path, json!({"items": items}))];
        responses.extend(discovery());
        let error = measure(responses, &pods(2, 0), USUAL, object("v1", "Service", "web")).await.0;
        assert!(error.expect_err("not one").message.ends_with("results when we asked for exactly one"));
    }
}

#[tokio::test]
async fn provider_of_the_old_version_only_is_read_in_it() {
    let group =
        json!({"versions": [{"groupVersion": "custom.metrics.k8s.io/v1beta1", "version": "v1beta1"}]});
    let path = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns/pods/*/hits";
    let item = |name: &str| json!({"describedObject": {"name": name}, "metricName": "hits", "value": "20", "window": 30});
    let responses =
        vec![("/apis/custom.metrics.k8s.io", group), (path, json!({"items": [item("p0"), item("p1")]}))];
    let metric = json!({"type": "Pods", "pods": {"metric": {"name": "hits"},
        "target": {"type": "AverageValue", "averageValue": "10"}}});
    let found = measure(responses, &pods(2, 0), USUAL, metric).await.0.expect("found");
    assert_eq!((found.replicas, found.name.as_str()), (4, "pods metric hits"));
}

#[tokio::test]
async fn external_metric_with_a_selector_is_named_by_it() {
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/depth";
    let metric = |selector: Value| {
        json!({"type": "External", "external": {"metric": {"name": "depth", "selector": selector},
            "target": {"type": "AverageValue", "averageValue": "10"}}})
    };
    let selector = json!({"matchLabels": {"queue": "q", "a": "b"},
        "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]});
    let responses = vec![(path, json!({"items": [{"value": "45"}]}))];
    let (found, requests) = measure(responses.clone(), &pods(2, 0), USUAL, metric(selector)).await;
    let found = found.expect("found");
    assert_eq!(found.replicas, 5);
    assert_eq!(
        found.name,
        "external metric depth(&LabelSelector{MatchLabels:map[string]string{a: b,queue: q,},MatchExpressions:\
         []LabelSelectorRequirement{LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},})"
    );
    assert!(requests[0].ends_with("?labelSelector=a%3Db%2Cqueue%3Dq%2Ck%20in%20%28x%2Cy%29"), "{requests:?}");
    let found = measure(responses, &pods(2, 0), USUAL, metric(Value::Null)).await.0.expect("found");
    assert_eq!(found.name, "external metric depth(nil)");
    let error = measure(Vec::new(), &pods(2, 0), USUAL, metric(Value::Null)).await.0.expect_err("not served");
    assert!(
        error.message.starts_with("unable to get external metric ns/depth/nil: unable to fetch metrics from")
    );
    assert!(
        error
            .summary
            .starts_with("failed to get depth external metric value: failed to get depth external metric: ")
    );
}

#[test]
fn one_failing_metric_prevents_scaling_down_only() {
    let good = |replicas| {
        let status = MetricStatus { type_: "Pods".to_owned(), ..MetricStatus::default() };
        Ok(Recommendation { replicas, name: format!("metric {replicas}"), status })
    };
    let bad = |number: u8| {
        Err(MeasureError {
            reason: "FailedGetPodsMetric",
            message: format!("error {number}"),
            summary: format!("failed {number}"),
        })
    };
    let up = Measured::of(vec![bad(1), good(5), good(4)], 3);
    assert_eq!(up.outcome, Some(Ok((5, "metric 5".to_owned()))));
    let types: Vec<&str> = up.statuses.iter().map(|status| status.type_.as_str()).collect();
    assert_eq!(types, ["", "Pods", "Pods"], "statuses are at the positions of their metrics");
    let down = Measured::of(vec![good(2), bad(1), bad(2)], 3).outcome.expect("an outcome");
    let (error, note) = down.expect_err("it might recommend more");
    assert_eq!(error.message, "error 1");
    assert_eq!(note, "invalid metrics (2 invalid out of 3), first error is: failed 1");
    assert_eq!(Measured::of(vec![good(2), good(1)], 3).outcome, Some(Ok((2, "metric 2".to_owned()))));
    assert_eq!(Measured::of(Vec::new(), 3).outcome, None);
}
