//! The paths and bodies of both groups.

use super::values::{MetricValue, Values};
use crate::record::{PodRecord, ServiceRecord};
use crate::serve::{Answer, Query, json_reply, refusal};
use http::{Method, Uri};
use machinery::quantity::Quantity;
use machinery::selector::LabelSelector;
use machinery::status::{Result, Status};
use percent_encoding::percent_decode_str;
use runtime::Cache;
use serde_json::{Map, Value, json};

pub const CUSTOM_GROUP: &str = "custom.metrics.k8s.io";
/// The preferred one first.
pub const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
pub const EXTERNAL_GROUP: &str = "external.metrics.k8s.io";
pub const EXTERNAL_VERSION: &str = "v1beta1";
/// Series of one response, at most.
const MAX_EXTERNAL: usize = 10_000;

/// Objects that metrics are about.
pub struct Described {
    pub pods: Cache<PodRecord>,
    pub services: Cache<ServiceRecord>,
}

/// Answers a request whose user may make it.
pub fn answer(described: &Described, values: &Values, method: &Method, uri: &Uri) -> Answer {
    let outcome = match *method {
        Method::GET | Method::HEAD => read(described, values, uri),
        _ => Err(Status::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )),
    };
    outcome.map_or_else(|status| refusal(&status), |body| json_reply(&body))
}

fn read(described: &Described, values: &Values, uri: &Uri) -> Result<Value> {
    let query = Query::parse(uri.query());
    let parts: Vec<String> = uri
        .path()
        .trim_matches('/')
        .split('/')
        .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["apis", CUSTOM_GROUP, version] if CUSTOM_VERSIONS.contains(version) => {
            Ok(custom_resources(values, version))
        }
        ["apis", CUSTOM_GROUP, version, "namespaces", ns, "pods", name, metric]
            if CUSTOM_VERSIONS.contains(version) =>
        {
            let labels = selector(&query, "metricLabelSelector")?;
            let wanted = (*ns, *name, *metric);
            of_pods(&described.pods, values, version, wanted, &selector(&query, "labelSelector")?, &labels)
        }
        ["apis", CUSTOM_GROUP, version, "namespaces", ns, "services", name, metric]
            if CUSTOM_VERSIONS.contains(version) =>
        {
            let labels = selector(&query, "metricLabelSelector")?;
            of_service(described, values, version, (ns, name, metric), &labels)
        }
        ["apis", CUSTOM_GROUP, version, "namespaces", ns, "metrics", metric]
            if CUSTOM_VERSIONS.contains(version) =>
        {
            of_namespace(values, version, ns, metric, &selector(&query, "metricLabelSelector")?)
        }
        ["apis", EXTERNAL_GROUP, EXTERNAL_VERSION] => Ok(json!({
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": format!("{EXTERNAL_GROUP}/{EXTERNAL_VERSION}"),
            "resources": [{"name": "externalmetrics", "singularName": "", "namespaced": true,
                "kind": "ExternalMetricValueList", "verbs": ["get"]}],
        })),
        ["apis", EXTERNAL_GROUP, EXTERNAL_VERSION, "namespaces", ns, metric] => {
            external(values, ns, metric, &selector(&query, "labelSelector")?)
        }
        _ => Err(Status::no_such_path()),
    }
}

fn selector(query: &Query, name: &str) -> Result<LabelSelector> {
    LabelSelector::parse(query.text(name)).map_err(|error| Status::bad_request(error.to_string()))
}

fn custom_resources(values: &Values, version: &str) -> Value {
    let resource = |name: &String| {
        json!({"name": format!("pods/{name}"), "singularName": "", "namespaced": true, "kind": "MetricValueList",
            "verbs": ["get"]})
    };
    let resources: Vec<Value> = values.names().iter().map(resource).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{CUSTOM_GROUP}/{version}"),
        "resources": resources})
}

/// A number as a quantity: thousandths, rounded.
fn quantity(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    let milli = (value * 1000.0).round() as i64;
    Quantity::from_milli(milli).to_string()
}

fn time(milliseconds: i64) -> String {
    let time =
        jiff::Timestamp::from_second(milliseconds.div_euclid(1000)).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.to_string()
}

fn item(version: &str, object: Value, metric: &str, found: &MetricValue) -> Value {
    let mut item =
        json!({"describedObject": object, "timestamp": time(found.at), "value": quantity(found.value)});
    if version == "v1beta1" {
        item["metricName"] = json!(metric);
        item["selector"] = Value::Null;
    } else {
        item["metric"] = json!({"name": metric, "selector": null});
    }
    if let Some(window) = found.window {
        let field = if version == "v1beta1" { "window" } else { "windowSeconds" };
        item[field] = json!(window);
    }
    item
}

fn list(version: &str, items: Vec<Value>) -> Value {
    json!({"kind": "MetricValueList", "apiVersion": format!("{CUSTOM_GROUP}/{version}"), "metadata": {}, "items": items})
}

fn of_pods(
    pods: &Cache<PodRecord>,
    values: &Values,
    version: &str,
    (ns, name, metric): (&str, &str, &str),
    selector: &LabelSelector,
    labels: &LabelSelector,
) -> Result<Value> {
    let object = |name: &str| json!({"kind": "Pod", "namespace": ns, "name": name, "apiVersion": "/v1"});
    if name != "*" {
        let found = pods.get(ns, name).and_then(|_| values.of_pod(ns, name, metric, labels));
        let missing = || missing(metric, &format!("pods {name}"));
        let found = found.ok_or_else(missing)?;
        return Ok(list(version, vec![item(version, object(name), metric, &found)]));
    }
    let mut names: Vec<String> = pods
        .list(ns)
        .iter()
        .filter(|pod| selector.is_empty() || selector.matches(&*pod.labels))
        .filter_map(|pod| pod.metadata.name.clone())
        .collect();
    names.sort_unstable();
    let found = names.iter().filter_map(|name| Some((name, values.of_pod(ns, name, metric, labels)?)));
    let items: Vec<Value> = found.map(|(name, found)| item(version, object(name), metric, &found)).collect();
    if items.is_empty() { Err(missing(metric, "pods")) } else { Ok(list(version, items)) }
}

/// The value of the pods that a service selects together.
fn of_service(
    described: &Described,
    values: &Values,
    version: &str,
    (ns, name, metric): (&str, &str, &str),
    labels: &LabelSelector,
) -> Result<Value> {
    let missing = || missing(metric, &format!("services {name}"));
    let service = described.services.get(ns, name).ok_or_else(missing)?;
    let pods = described.pods.list(ns);
    let selected = pods.iter().filter(|pod| service.selects(&pod.labels));
    let found = selected.filter_map(|pod| values.of_pod(ns, pod.metadata.name.as_deref()?, metric, labels));
    let found: Vec<MetricValue> = found.collect();
    let value = values.rules().aggregation(metric).of(found.iter().map(|one| one.value));
    let newest = found.iter().max_by_key(|one| one.at);
    let (Some(value), Some(newest)) = (value, newest) else { return Err(missing()) };
    let together = MetricValue { value, ..newest.clone() };
    let object = json!({"kind": "Service", "namespace": ns, "name": name, "apiVersion": "/v1"});
    Ok(list(version, vec![item(version, object, metric, &together)]))
}

fn of_namespace(
    values: &Values,
    version: &str,
    ns: &str,
    metric: &str,
    labels: &LabelSelector,
) -> Result<Value> {
    let found = values.total_of_namespace(ns, metric, labels);
    let found = found.ok_or_else(|| missing(metric, &format!("namespaces {ns}")))?;
    let object = json!({"kind": "Namespace", "name": ns, "apiVersion": "/v1"});
    Ok(list(version, vec![item(version, object, metric, &found)]))
}

fn missing(metric: &str, of: &str) -> Status {
    let message = format!("the server could not find the metric {metric} for {of}");
    Status::new(404, "NotFound", message)
}

fn external(values: &Values, ns: &str, metric: &str, selector: &LabelSelector) -> Result<Value> {
    let found = values.of_namespace(ns, metric, selector, MAX_EXTERNAL).ok_or_else(|| {
        let message = format!("more than {MAX_EXTERNAL} series of the metric {metric}; use a label selector");
        Status::new(413, "RequestEntityTooLarge", message)
    })?;
    let items: Vec<Value> = found
        .into_iter()
        .map(|(pod, labels, found)| {
            let mut own: Map<String, Value> =
                labels.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
            own.entry("pod").or_insert(json!(pod));
            let mut item = json!({"metricName": metric, "metricLabels": own, "timestamp": time(found.at),
                "value": quantity(found.value)});
            if let Some(window) = found.window {
                item["window"] = json!(window);
            }
            item
        })
        .collect();
    Ok(
        json!({"kind": "ExternalMetricValueList", "apiVersion": format!("{EXTERNAL_GROUP}/{EXTERNAL_VERSION}"),
        "metadata": {}, "items": items}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::page::{Labels, Metric, Series};
    use crate::adapter::rules::AdapterRules;
    use crate::adapter::values::MemoryLimits;
    use objects::meta::v1::ObjectMeta;

    fn ask(path: &str) -> (u16, Value) {
        let pods = Cache::new();
        let pod = |name: &str, app: &str| PodRecord {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some("ns".to_owned()),
                ..ObjectMeta::default()
            },
            labels: [("app".into(), app.into())].into(),
            ..PodRecord::default()
        };
        pods.replace(vec![pod("a", "web"), pod("b", "other"), pod("c", "web")]);
        let values =
            Values::new(MemoryLimits { total: 1 << 20, namespace: 1 << 20 }, AdapterRules::default());
        for (name, at, value) in [("a", 1_767_225_600_000, 2.5), ("b", 1_767_225_600_000, 4.0)] {
            let labels: Labels = vec![("queue".into(), "q".into())].into();
            let metric = Metric { is_counter: false, rows: vec![(labels, value)] };
            let page: Series = [("jobs".into(), metric)].into();
            values.store("ns", name, at, page).expect("stored");
        }
        let services = Cache::new();
        let metadata = ObjectMeta {
            name: Some("web".to_owned()),
            namespace: Some("ns".to_owned()),
            ..ObjectMeta::default()
        };
        services.replace(vec![ServiceRecord { metadata, selector: [("app".into(), "web".into())].into() }]);
        let answer =
            answer(&Described { pods, services }, &values, &Method::GET, &path.parse().expect("a uri"));
        (answer.status().as_u16(), serde_json::from_slice(answer.body()).expect("JSON"))
    }

    #[test]
    fn metrics_of_pods_in_both_versions() {
        let (code, list) =
            ask("/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/*/jobs?labelSelector=app%3Dweb");
        assert_eq!(code, 200);
        assert_eq!(
            list["items"],
            json!([{"describedObject": {"kind": "Pod", "namespace": "ns", "name": "a", "apiVersion": "/v1"},
                "metric": {"name": "jobs", "selector": null}, "timestamp": "2026-01-01T00:00:00Z", "value": "2500m"}])
        );
        let (_, list) = ask("/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns/pods/%2A/jobs");
        assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
        assert_eq!(list["items"][1]["metricName"], "jobs");
        assert_eq!(list["items"][1]["value"], "4");
        assert_eq!(
            ask("/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns/pods/b/jobs").1["items"][0]["value"],
            "4"
        );
        assert_eq!(
            ask("/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/metrics/jobs").1["items"][0]["value"],
            "6500m"
        );
        let (_, resources) = ask("/apis/custom.metrics.k8s.io/v1beta2");
        assert_eq!(resources["resources"][0]["name"], "pods/jobs");
    }

    #[test]
    fn metric_of_a_service_is_the_sum_of_its_pods() {
        let (code, list) = ask("/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/services/web/jobs");
        assert_eq!((code, &list["items"][0]["value"]), (200, &json!("2500m")));
        assert_eq!(list["items"][0]["describedObject"]["kind"], "Service");
    }

    #[test]
    fn missing_metrics_are_not_found() {
        for path in ["pods/*/none", "pods/c/jobs", "pods/x/jobs", "metrics/none", "services/a/jobs"] {
            let (code, status) = ask(&format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/{path}"));
            assert_eq!((code, status["kind"].as_str()), (404, Some("Status")), "{path}");
        }
        assert_eq!(
            ask("/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/*/jobs?labelSelector=%3D").0,
            400
        );
    }

    #[test]
    fn external_metrics_are_every_series() {
        let base = "/apis/external.metrics.k8s.io/v1beta1/namespaces";
        let (code, list) = ask(&format!("{base}/ns/jobs?labelSelector=queue%3Dq"));
        assert_eq!((code, list["kind"].as_str()), (200, Some("ExternalMetricValueList")));
        assert_eq!(list["items"][0]["metricLabels"], json!({"queue": "q", "pod": "a"}));
        assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
        assert_eq!(ask(&format!("{base}/ns/none")).1["items"], json!([]));
    }
}
