//! Conversion webhooks: converts objects in batches and verifies that their identity is unchanged.

use crate::admission::{CallFailure, call_error_text, service_address, with_query};
use crate::outbound::{Client, Target, Trust};
use crate::registry::{Convert, Registry};
use api::value::{Fields, texts};
use base::metrics::{Metrics, MetricsError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use machinery::status::{Result, Status};
use machinery::{Map, Value};
use parking_lot::Mutex;
use prometheus::{HistogramVec, IntCounterVec};
use serde_json::json;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time limit of a conversion, as in Kubernetes.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Supported versions of ConversionReview.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Metadata fields that a webhook may change.
const MUTABLE: [&str; 2] = ["labels", "annotations"];

/// The conversion webhook of one definition.
pub struct Webhook {
    registry: Weak<Registry>,
    /// Name of the definition.
    name: String,
    /// `example.com, Kind=Widget`, for messages.
    shown: String,
    config: Value,
    /// The first listed version of ConversionReview that this server supports.
    review_version: Option<&'static str>,
    client: Mutex<Option<(String, Arc<Client>)>>,
    settings: ConversionSettings,
}

/// Settings shared by all conversion webhooks.
#[derive(Clone)]
pub struct ConversionSettings {
    /// Time limit of a webhook.
    pub timeout: Duration,
    pub metrics: ConversionMetrics,
}

/// Failure types, as named in metrics.
#[derive(Clone, Copy)]
enum FailureKind {
    Call,
    MalformedResponse,
    PartialResponse,
    InvalidObject,
}

impl FailureKind {
    fn name(self) -> &'static str {
        match self {
            Self::Call => "conversion_webhook_call_failure",
            Self::MalformedResponse => "conversion_webhook_malformed_response_failure",
            Self::PartialResponse => "conversion_webhook_partial_response_failure",
            Self::InvalidObject => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// A conversion that failed.
struct Failure {
    kind: FailureKind,
    message: String,
}

impl Failure {
    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Metrics of conversion webhooks.
#[derive(Clone)]
pub struct ConversionMetrics {
    requests: IntCounterVec,
    latencies: HistogramVec,
    by_definition: HistogramVec,
}

impl ConversionMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        const RESULT: [&str; 2] = ["result", "failure_type"];
        const SECONDS: [f64; 15] =
            [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
        let doubled: Vec<f64> = (0..15).map(|power| 0.001 * f64::from(1 << power)).collect();
        Ok(Self {
            requests: metrics.counters(
                "apiserver_conversion_webhook_request_total",
                "Counter for conversion webhook requests with success/failure and failure error type",
                &RESULT,
            )?,
            latencies: metrics.histograms(
                "apiserver_conversion_webhook_duration_seconds",
                "Conversion webhook request latency",
                &RESULT,
                &SECONDS,
            )?,
            by_definition: metrics.histograms(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "CRD webhook conversion duration in seconds",
                &["crd_name", "from_version", "to_version", "succeeded"],
                &doubled,
            )?,
        })
    }

    fn observe(&self, elapsed: Duration, failure: Option<FailureKind>) {
        let labels = match failure {
            None => ["success", ""],
            Some(kind) => ["failure", kind.name()],
        };
        self.requests.with_label_values(&labels).inc();
        self.latencies.with_label_values(&labels).observe(elapsed.as_secs_f64());
    }
}

impl Webhook {
    pub fn new(registry: Weak<Registry>, definition: &Value, settings: ConversionSettings) -> Self {
        let spec = definition.field("spec");
        let webhook = spec.field("conversion").field("webhook");
        let known = |submitted: &str| REVIEW_VERSIONS.into_iter().find(|version| *version == submitted);
        Self {
            registry,
            shown: format!("{}, Kind={}", spec.text("group"), spec.field("names").text("kind")),
            config: webhook.field("clientConfig").clone(),
            review_version: texts(webhook.items("conversionReviewVersions")).find_map(known),
            client: Mutex::default(),
            name: machinery::meta::name(definition).to_owned(),
            settings,
        }
    }

    async fn call(&self, objects: &[Value], api_version: &str) -> Result<Vec<Value>, Failure> {
        let call = |message: String| Failure::new(FailureKind::Call, message);
        let version =
            self.review_version.ok_or_else(|| call("no supported conversion review versions".to_owned()))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({
            "apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
        });
        let query = format!("timeout={}s", self.settings.timeout.as_secs());
        let (shown, reached, server_name) = match self.config.opt_text("url") {
            Some(url) => {
                let url = with_query(url, &query);
                (url.clone(), url, None)
            }
            None => {
                let registry = self.registry.upgrade().ok_or_else(|| call("the server stops".to_owned()))?;
                let found = service_address(self.config.field("service"), &registry, &query).await;
                found.map_err(|CallFailure(why)| call(why))?
            }
        };
        let client = self.client(&reached, server_name).map_err(call)?;
        let answer = client.post(&review, self.settings.timeout).await;
        let answer = answer.map_err(|error| call(call_error_text(&error, &shown)))?;
        check_review(&answer, version, &uid)?;
        converted(&answer, objects, api_version)
    }

    fn client(&self, url: &str, server_name: Option<String>) -> Result<Arc<Client>, String> {
        if let Some((known, client)) = &*self.client.lock()
            && known == url
        {
            return Ok(Arc::clone(client));
        }
        let bundle = STANDARD.decode(self.config.text("caBundle")).ok();
        let authorities = bundle.filter(|bundle| !bundle.is_empty()).into();
        let trust = Trust { authorities, server_name, ..Trust::default() };
        let target = Target::of_webhook(url, &trust).map_err(|error| error.to_string())?;
        let client = Arc::new(Client::new(target).for_webhook());
        *self.client.lock() = Some((url.to_owned(), Arc::clone(&client)));
        Ok(client)
    }
}

impl Convert for Webhook {
    fn convert<'a>(&'a self, objects: Vec<Value>, api_version: &'a str) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let is_other = |object: &Value| object.text("apiVersion") != api_version;
            let others: Vec<Value> = objects.iter().filter(|object| is_other(object)).cloned().collect();
            if others.is_empty() {
                return Ok(objects);
            }
            let from = others.first().map(|object| object.text("apiVersion").to_owned()).unwrap_or_default();
            let (_, version) = machinery::gvk::split_api_version(&from);
            let start = std::time::Instant::now();
            let outcome = self.call(&others, api_version).await;
            let (metrics, elapsed) = (&self.settings.metrics, start.elapsed());
            metrics.observe(elapsed, outcome.as_ref().err().map(|failure| failure.kind));
            let (_, wanted) = machinery::gvk::split_api_version(api_version);
            let succeeded = if outcome.is_ok() { "true" } else { "false" };
            let labels = [&*self.name, version, wanted, succeeded];
            metrics.by_definition.with_label_values(&labels).observe(elapsed.as_secs_f64());
            let converted = outcome.map_err(|Failure { message: why, .. }| {
                let shown = self.shown.replacen(", ", &format!("/{version}, "), 1);
                Status::internal(format!("conversion webhook for {shown} failed: {why}"))
            })?;
            let mut converted = converted.into_iter();
            let take =
                |object: Value| if is_other(&object) { converted.next().unwrap_or(object) } else { object };
            Ok(objects.into_iter().map(take).collect())
        })
    }
}

fn malformed<T>(message: String) -> Result<T, Failure> {
    Err(Failure::new(FailureKind::MalformedResponse, message))
}

/// Checks that a review responds to the request. As in Kubernetes, one of v1beta1 needs neither its type nor the UID.
fn check_review(answer: &Value, version: &str, uid: &str) -> Result<(), Failure> {
    let shown = |api_version: &str, kind: &str| {
        let (group, version) = machinery::gvk::split_api_version(api_version);
        format!("{group}/{version}, Kind={kind}")
    };
    let found = shown(answer.text("apiVersion"), answer.text("kind"));
    let wanted = shown(&format!("apiextensions.k8s.io/{version}"), "ConversionReview");
    if version != "v1beta1" && found != wanted {
        return malformed(format!("expected webhook response of {wanted}, got {found}"));
    }
    let response = answer.field("response");
    if !response.is_object() {
        return malformed("no response provided".to_owned());
    }
    if version != "v1beta1" && response.text("uid") != uid {
        return malformed(format!("expected response.uid={uid:?}, got {:?}", response.text("uid")));
    }
    Ok(())
}

/// The objects of a response, if it changes only permitted fields.
fn converted(answer: &Value, objects: &[Value], api_version: &str) -> Result<Vec<Value>, Failure> {
    let response = answer.field("response");
    let result = response.field("result");
    if result.text("status") != "Success" {
        return malformed(match result.opt_text("message").filter(|message| !message.is_empty()) {
            Some(message) => message.to_owned(),
            None => format!("response.result.status was '{}', not 'Success'", result.text("status")),
        });
    }
    let found = response.items("convertedObjects");
    if found.len() != objects.len() {
        let message = format!("returned {} objects, expected {}", found.len(), objects.len());
        return Err(Failure::new(FailureKind::PartialResponse, message));
    }
    let pairs = objects.iter().zip(found).enumerate();
    pairs.map(|(index, (submitted, found))| checked(index, submitted, found, api_version)).collect()
}

fn checked(index: usize, submitted: &Value, found: &Value, api_version: &str) -> Result<Value, Failure> {
    let invalid = |why: String| {
        let message = format!("returned invalid converted object at index {index}: {why}");
        Err(Failure::new(FailureKind::InvalidObject, message))
    };
    if found.text("apiVersion") != api_version {
        return invalid(format!(
            "invalid groupVersion (expected {api_version}, received {})",
            found.text("apiVersion")
        ));
    }
    if found.text("kind") != submitted.text("kind") {
        return invalid(format!(
            "invalid kind (expected {}, received {})",
            submitted.text("kind"),
            found.text("kind")
        ));
    }
    let empty = Map::new();
    let (Some(old), Some(new)) =
        (submitted.field("metadata").as_object(), found.field("metadata").as_object())
    else {
        return invalid("metadata is not an object".to_owned());
    };
    for field in ["name", "namespace", "uid"] {
        if old.get(field) != new.get(field) {
            return invalid(format!("must have the same {field}"));
        }
    }
    // The webhook may change labels and annotations; all other metadata is restored.
    let mut metadata = old.clone();
    for field in MUTABLE {
        match new.get(field) {
            Some(value) if value.as_object() != Some(&empty) => {
                metadata.insert(field.to_owned(), value.clone())
            }
            _ => metadata.remove(field),
        };
    }
    let mut object = found.clone();
    object.set("metadata", Value::Object(metadata));
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_response_is_validated_and_preserves_identity() {
        let submitted = [json!({
            "apiVersion": "example.com/v1", "kind": "W",
            "metadata": {"name": "a", "uid": "u", "labels": {"x": "y"}, "finalizers": ["f"]},
        })];
        let object = json!({
            "apiVersion": "example.com/v2", "kind": "W",
            "metadata": {"name": "a", "uid": "u", "annotations": {"n": "1"}}, "spec": 1,
        });
        let review = |version: &str, response: Value| json!({"apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview", "response": response});
        let response = |uid: &str, result: Value, objects: Value| json!({"uid": uid, "result": result, "convertedObjects": objects});
        let answer = |uid: &str, result: Value, objects: Value| review("v1", response(uid, result, objects));
        let success = json!({"status": "Success"});
        let run_as = |version: &str, answer: Value| {
            check_review(&answer, version, "1")?;
            converted(&answer, &submitted, "example.com/v2")
        };
        let run = |answer: Value| run_as("v1", answer);
        let made =
            run(answer("1", success.clone(), json!([object]))).map_err(|why| why.message).expect("converted");
        assert_eq!(
            made[0]["metadata"],
            json!({"name": "a", "uid": "u", "annotations": {"n": "1"}, "finalizers": ["f"]})
        );
        assert_eq!(made[0]["spec"], 1);
        let mut renamed = object.clone();
        renamed["metadata"]["name"] = json!("b");
        let mut old_version = object.clone();
        old_version["apiVersion"] = json!("example.com/v1");
        for (answer, why) in [
            (review("v1", json!(null)), "no response provided"),
            (
                review("v1beta1", response("1", success.clone(), json!([object]))),
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1beta1, Kind=ConversionReview",
            ),
            (
                json!({"response": response("1", success.clone(), json!([object]))}),
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /, Kind=",
            ),
            (
                answer("1", json!({"status": "Failed"}), json!([])),
                "response.result.status was 'Failed', not 'Success'",
            ),
            (answer("2", success.clone(), json!([object])), "expected response.uid=\"1\", got \"2\""),
            (answer("1", json!({"status": "Failure", "message": "no"}), json!([])), "no"),
            (answer("1", success.clone(), json!([])), "returned 0 objects, expected 1"),
            (
                answer("1", success.clone(), json!([renamed])),
                "returned invalid converted object at index 0: must have the same name",
            ),
            (
                answer("1", success, json!([old_version])),
                "returned invalid converted object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v1)",
            ),
        ] {
            assert_eq!(run(answer).map_err(|why| why.message).expect_err("refused"), why);
        }
        let beta = json!({"response": response("", json!({"status": "Success"}), json!([object]))});
        assert!(run_as("v1beta1", beta).is_ok(), "neither the type nor the UID counts");
    }
}
