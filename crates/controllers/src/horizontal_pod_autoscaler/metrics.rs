//! Metrics clients: pods from metrics.k8s.io, others from custom.metrics.k8s.io and external.metrics.k8s.io, if
//! served.

use client::{Client, ClientError};
use jiff::{SignedDuration, Timestamp};
use machinery::quantity::Quantity;
use objects::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier};
use objects::meta::v1::LabelSelector;
use serde_json::Value;

use super::calculate::{Sample, Samples};

/// Names of the metrics APIs, as messages have them.
const RESOURCE_API: &str = "resource metrics API";
const CUSTOM_API: &str = "custom metrics API";
const EXTERNAL_API: &str = "external metrics API";

/// Reason why a metric has no value. The texts are Kubernetes', for conditions and events.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error("no metrics returned from {0}")]
    None(&'static str),
    #[error("unable to fetch metrics from {api}: {error}")]
    Fetch { api: &'static str, error: ClientError },
    /// A provider that returns no value, or none that is a quantity, must not pass for an idle one.
    #[error("unable to fetch metrics from {0}: a value is missing or is not a quantity")]
    Value(&'static str),
    #[error(
        "unable to fetch metrics from {CUSTOM_API}: unable to map kind {kind} to resource: no matches for kind {kind:?} in group {group:?}"
    )]
    Kind { kind: String, group: String },
    #[error(
        "unable to fetch metrics from {CUSTOM_API}: the custom metrics API server returned {0} results when we asked for exactly one"
    )]
    Count(usize),
}

async fn fetch(client: &Client, api: &'static str, path: &str) -> Result<Value, MetricsError> {
    client.read(path).await.map_err(|error| MetricsError::Fetch { api, error })
}

/// The value of an item, in thousandths.
fn milli(value: &Value, api: &'static str) -> Result<i64, MetricsError> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return Err(MetricsError::Value(api)),
    };
    let amount = Quantity::parse(&text).map_err(|_| MetricsError::Value(api))?;
    Ok(amount.milli_value())
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn window(value: &Value) -> SignedDuration {
    let text = value.as_str().unwrap_or_default();
    text.parse().unwrap_or(SignedDuration::from_secs(60))
}

/// Percent-encodes every byte with a meaning in a query.
pub fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn selector_text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return String::new() };
    let mut parts: Vec<String> =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    for requirement in selector.match_expressions.iter().flatten() {
        let (key, values) = (&requirement.key, requirement.values.clone().unwrap_or_default().join(","));
        parts.push(match requirement.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        });
    }
    parts.join(",")
}

/// A selector as Kubernetes prints it in messages.
pub fn printed(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels: String =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},")).collect();
    let one = |requirement: &objects::meta::v1::LabelSelectorRequirement| {
        let values = requirement.values.as_deref().unwrap_or_default().join(" ");
        let (key, operator) = (&requirement.key, &requirement.operator);
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    };
    let expressions: String = selector.match_expressions.iter().flatten().map(one).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

/// Resource usage of pods, of one container or of all together.
pub async fn of_resource(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<Samples, MetricsError> {
    let path = format!(
        "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods?labelSelector={}",
        escape(selector)
    );
    let list = fetch(client, RESOURCE_API, &path).await?;
    read_pods(&list, resource, container)
}

fn read_pods(list: &Value, resource: &str, container: Option<&str>) -> Result<Samples, MetricsError> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Err(MetricsError::None(RESOURCE_API));
    }
    let mut samples = Samples::new();
    for item in items {
        let Some(name) = item.pointer("/metadata/name").and_then(Value::as_str) else { continue };
        let containers = item["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let wanted: Vec<_> =
            containers.iter().filter(|each| container.is_none_or(|only| each["name"] == only)).collect();
        // A pod with a container without metrics has no metrics.
        if wanted.is_empty() || wanted.iter().any(|each| each["usage"][resource].is_null()) {
            continue;
        }
        let mut value = 0_i64;
        for each in wanted {
            value = value.saturating_add(milli(&each["usage"][resource], RESOURCE_API)?);
        }
        let sample = Sample { value, at: time(&item["timestamp"]), window: window(&item["window"]) };
        samples.insert(name.to_owned(), sample);
    }
    Ok(samples)
}

const CUSTOM: &str = "/apis/custom.metrics.k8s.io";
/// Supported versions of the custom metrics API, preferred first.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// Path of the custom metrics API in the version that its server supports. Adapters differ.
async fn custom_path(client: &Client) -> String {
    let group: Value = client.read(CUSTOM).await.unwrap_or_default();
    format!("{CUSTOM}/{}", custom_version(&group))
}

/// Preferred version that an APIGroup lists; the first if it lists none that is supported.
fn custom_version(group: &Value) -> &'static str {
    let listed = group["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_served = |version: &&&str| listed.iter().any(|served| served["version"] == **version);
    CUSTOM_VERSIONS.iter().find(is_served).unwrap_or(&CUSTOM_VERSIONS[0])
}

/// Window of a custom metric; versions name the field differently.
fn averaged_over(item: &Value) -> SignedDuration {
    let seconds = item["windowSeconds"].as_i64().or_else(|| item["window"].as_i64());
    SignedDuration::from_secs(seconds.unwrap_or(60))
}

/// Values of a custom metric by pod.
pub async fn of_pods(
    client: &Client,
    namespace: &str,
    selector: &str,
    metric: &MetricIdentifier,
) -> Result<Samples, MetricsError> {
    let path = format!(
        "{}/namespaces/{namespace}/pods/*/{}?labelSelector={}&metricLabelSelector={}",
        custom_path(client).await,
        escape(&metric.name),
        escape(selector),
        escape(&selector_text(metric.selector.as_ref())),
    );
    let list = fetch(client, CUSTOM_API, &path).await?;
    let mut samples = Samples::new();
    for item in list["items"].as_array().into_iter().flatten() {
        let Some(name) = item.pointer("/describedObject/name").and_then(Value::as_str) else { continue };
        let value = milli(&item["value"], CUSTOM_API)?;
        let sample = Sample { value, at: time(&item["timestamp"]), window: averaged_over(item) };
        samples.insert(name.to_owned(), sample);
    }
    if samples.is_empty() { Err(MetricsError::None(CUSTOM_API)) } else { Ok(samples) }
}

/// Value of a custom metric of one object. The object is always in the namespace of the autoscaler: a reference has no
/// namespace, and the name of a Namespace is ignored, so that no autoscaler reads metrics of another namespace.
pub async fn of_object(
    client: &Client,
    namespace: &str,
    object: &CrossVersionObjectReference,
    metric: &MetricIdentifier,
) -> Result<i64, MetricsError> {
    let version = object.api_version.as_deref().unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let described = if object.kind == "Namespace" && group.is_empty() {
        "metrics".to_owned()
    } else {
        let discovery = client.discover().await;
        let discovery = discovery.map_err(|error| MetricsError::Fetch { api: CUSTOM_API, error })?;
        let found =
            discovery.preferred.iter().find(|info| info.kind == object.kind && info.key.group == group);
        let found =
            found.ok_or_else(|| MetricsError::Kind { kind: object.kind.clone(), group: group.to_owned() })?;
        format!("{}/{}", found.key.qualified(), escape(&object.name))
    };
    let path = format!(
        "{}/namespaces/{namespace}/{described}/{}?metricLabelSelector={}",
        custom_path(client).await,
        escape(&metric.name),
        escape(&selector_text(metric.selector.as_ref())),
    );
    let list = fetch(client, CUSTOM_API, &path).await?;
    match list["items"].as_array().map(Vec::as_slice).unwrap_or_default() {
        [only] => milli(&only["value"], CUSTOM_API),
        items => Err(MetricsError::Count(items.len())),
    }
}

/// Sum of an external metric.
pub async fn external(
    client: &Client,
    namespace: &str,
    metric: &MetricIdentifier,
) -> Result<i64, MetricsError> {
    let path = format!(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}?labelSelector={}",
        escape(&metric.name),
        escape(&selector_text(metric.selector.as_ref())),
    );
    let list = fetch(client, EXTERNAL_API, &path).await?;
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Err(MetricsError::None(EXTERNAL_API));
    }
    let mut sum = 0_i64;
    for item in items {
        sum = sum.saturating_add(milli(&item["value"], EXTERNAL_API)?);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_metrics_version_is_a_served_one() {
        let group = |versions: &[&str]| {
            let versions: Vec<Value> =
                versions.iter().map(|version| serde_json::json!({"version": version})).collect();
            serde_json::json!({"versions": versions})
        };
        assert_eq!(custom_version(&group(&["v1beta1"])), "v1beta1");
        assert_eq!(custom_version(&group(&["v1beta1", "v1beta2"])), "v1beta2");
        assert_eq!(custom_version(&Value::Null), "v1beta2");
        assert_eq!(averaged_over(&serde_json::json!({"window": 30})), SignedDuration::from_secs(30));
        assert_eq!(averaged_over(&serde_json::json!({"windowSeconds": 15})), SignedDuration::from_secs(15));
    }
    use serde_json::json;

    #[test]
    fn pod_usage_sums_containers() {
        let container =
            |name: &str, cpu: &str| json!({ "name": name, "usage": { "cpu": cpu, "memory": "1Mi" } });
        let list = json!({ "items": [
            { "metadata": { "name": "a" }, "timestamp": "2026-01-01T00:00:00Z", "window": "30s",
              "containers": [container("x", "100m"), container("y", "1")] },
            { "metadata": { "name": "b" }, "containers": [{ "name": "x", "usage": {} }] },
        ] });
        let all = read_pods(&list, "cpu", None).expect("samples");
        assert_eq!((all.len(), all["a"].value, all["a"].window), (1, 1100, SignedDuration::from_secs(30)));
        assert_eq!(read_pods(&list, "cpu", Some("x")).expect("samples")["a"].value, 100);
        assert!(read_pods(&list, "cpu", Some("z")).expect("no pod has the container").is_empty());
        assert!(matches!(read_pods(&json!({"items": []}), "cpu", None), Err(MetricsError::None(_))));
        let wrong =
            json!({ "items": [{ "metadata": { "name": "a" }, "containers": [container("x", "much")] }] });
        assert!(matches!(read_pods(&wrong, "cpu", None), Err(MetricsError::Value(_))));
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escape("a=b,c in (d)"), "a%3Db%2Cc%20in%20%28d%29");
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": { "a": "b" }, "matchExpressions": [{ "key": "c", "operator": "NotIn", "values": ["d", "e"] }],
        })).expect("a selector");
        assert_eq!(selector_text(Some(&selector)), "a=b,c notin (d,e)");
    }
}
