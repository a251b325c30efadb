//! Reading metrics: of pods from metrics.k8s.io, others from custom.metrics.k8s.io and external.metrics.k8s.io, when
//! something serves them.

use client::{Client, ClientError};
use jiff::{SignedDuration, Timestamp};
use machinery::quantity::Quantity;
use objects::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier};
use objects::meta::v1::LabelSelector;
use serde_json::Value;

use super::calculate::{Sample, Samples};

#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error("no metrics returned from {0}")]
    None(&'static str),
    #[error("container {0} not present in metrics for pods")]
    NoContainer(String),
    #[error(transparent)]
    Client(#[from] ClientError),
}

fn milli(value: &Value) -> i64 {
    let text = value.as_str().map(str::to_owned).unwrap_or_else(|| value.to_string());
    Quantity::parse(&text).map_or(0, |amount| amount.milli_value())
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn window(value: &Value) -> SignedDuration {
    let text = value.as_str().unwrap_or_default();
    text.parse().unwrap_or(SignedDuration::from_secs(60))
}

/// Every byte that a query might give a meaning to, escaped.
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

/// Usage of a resource by pods, of one container or of all together.
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
    let list: Value = client.read(&path).await?;
    let samples = read_pods(&list, resource, container)?;
    if samples.is_empty() { Err(MetricsError::None("resource metrics API")) } else { Ok(samples) }
}

fn read_pods(list: &Value, resource: &str, container: Option<&str>) -> Result<Samples, MetricsError> {
    let mut samples = Samples::new();
    for item in list["items"].as_array().into_iter().flatten() {
        let Some(name) = item.pointer("/metadata/name").and_then(Value::as_str) else { continue };
        let containers = item["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let wanted: Vec<_> =
            containers.iter().filter(|each| container.is_none_or(|only| each["name"] == only)).collect();
        if let (Some(only), true) = (container, wanted.is_empty()) {
            return Err(MetricsError::NoContainer(only.to_owned()));
        }
        // A pod of which not every container was measured was not measured.
        if wanted.is_empty() || wanted.iter().any(|each| each["usage"][resource].is_null()) {
            continue;
        }
        let value =
            wanted.iter().fold(0_i64, |sum, each| sum.saturating_add(milli(&each["usage"][resource])));
        let sample = Sample { value, at: time(&item["timestamp"]), window: window(&item["window"]) };
        samples.insert(name.to_owned(), sample);
    }
    Ok(samples)
}

const CUSTOM: &str = "/apis/custom.metrics.k8s.io";
/// Versions of the custom metrics API that can be read, the best first.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The path of the version of the custom metrics API that its server has. Adapters differ.
async fn custom_path(client: &Client) -> String {
    let group: Value = client.read(CUSTOM).await.unwrap_or_default();
    format!("{CUSTOM}/{}", custom_version(&group))
}

/// The best version that an APIGroup lists; the best of all if it lists none that can be read.
fn custom_version(group: &Value) -> &'static str {
    let listed = group["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_served = |version: &&&str| listed.iter().any(|served| served["version"] == **version);
    CUSTOM_VERSIONS.iter().find(is_served).unwrap_or(&CUSTOM_VERSIONS[0])
}

/// The time that a custom metric is an average of; versions name the field differently.
fn averaged_over(item: &Value) -> SignedDuration {
    let seconds = item["windowSeconds"].as_i64().or_else(|| item["window"].as_i64());
    SignedDuration::from_secs(seconds.unwrap_or(60))
}

/// A custom metric of pods.
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
    let list: Value = client.read(&path).await?;
    let read = |item: &Value| {
        let name = item.pointer("/describedObject/name")?.as_str()?.to_owned();
        let sample = Sample {
            value: milli(&item["value"]),
            at: time(&item["timestamp"]),
            window: averaged_over(item),
        };
        Some((name, sample))
    };
    let samples: Samples = list["items"].as_array().into_iter().flatten().filter_map(read).collect();
    if samples.is_empty() { Err(MetricsError::None("custom metrics API")) } else { Ok(samples) }
}

/// A custom metric of one object.
pub async fn of_object(
    client: &Client,
    namespace: &str,
    object: &CrossVersionObjectReference,
    metric: &MetricIdentifier,
) -> Result<i64, MetricsError> {
    let discovery = client.discover().await?;
    let version = object.api_version.as_deref().unwrap_or("v1");
    let resource =
        discovery.find(version, &object.kind).map(|info| (info.key.qualified(), info.key.namespaced));
    let (resource, namespaced) =
        resource.unwrap_or_else(|| (format!("{}s", object.kind.to_lowercase()), true));
    let scope = if namespaced { format!("namespaces/{namespace}/") } else { String::new() };
    let path = format!(
        "{}/{scope}{resource}/{}/{}?metricLabelSelector={}",
        custom_path(client).await,
        escape(&object.name),
        escape(&metric.name),
        escape(&selector_text(metric.selector.as_ref())),
    );
    let list: Value = client.read(&path).await?;
    let first = list["items"].as_array().and_then(|items| items.first());
    first.map(|item| milli(&item["value"])).ok_or(MetricsError::None("custom metrics API"))
}

/// The sum of an external metric.
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
    let list: Value = client.read(&path).await?;
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Err(MetricsError::None("external metrics API"));
    }
    Ok(items.iter().fold(0_i64, |sum, item| sum.saturating_add(milli(&item["value"]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_the_custom_metrics_api_is_one_that_is_served() {
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
    fn usage_of_containers_adds_up() {
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
        assert!(read_pods(&list, "cpu", Some("z")).is_err());
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
