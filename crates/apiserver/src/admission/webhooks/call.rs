//! Calls one webhook and evaluates its response.

use super::hook::{self, Hook};
use crate::admission::Attributes;
use crate::aggregate::{Routing, ServiceReference, resolve, service_and_slices};
use crate::outbound::CallError;
use crate::registry::Registry;
use api::value::Fields;
use base::trace::{self, Kind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::Value;
use machinery::names::qualified_name;
use machinery::status::{Result, Status};
use serde_json::json;
use std::io::ErrorKind;

/// Outcome of an admitted call.
pub enum WebhookOutcome {
    Allowed,
    /// The call failed, and the failure policy is `Ignore`.
    FailedOpen,
    /// JSON patch operations.
    Patched(Value),
}

/// Reason why a call failed.
pub struct Failure(pub String);

/// Calls the webhook; a denial is an error, and so is a failed call unless the failure policy is `Ignore`. Sets
/// `is_denied` if the webhook itself denied the write.
pub async fn ask(
    hook: &Hook,
    registry: &Registry,
    attributes: &Attributes<'_>,
    (object, old): (Option<&Value>, Option<&Value>),
    is_denied: &mut bool,
) -> Result<WebhookOutcome> {
    if attributes.context.dry_run && hook.has_side_effects {
        return Err(Status::bad_request(format!(
            "admission webhook {:?} does not support dry run",
            hook.name
        )));
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let mut request = hook::request(attributes, object.or(old));
    request["uid"] = uid.as_str().into();
    request["object"] = object.cloned().unwrap_or_default();
    request["oldObject"] = old.cloned().unwrap_or_default();
    let version = format!("admission.k8s.io/{}", hook.review_version);
    let review = json!({"apiVersion": version, "kind": "AdmissionReview", "request": request});
    let mut span = trace::child(Kind::Client, || {
        if hook.is_mutating { "Call mutating webhook" } else { "Call validating webhook" }
    });
    span.record(|attributes| attributes.set_text("webhook", &hook.name));
    let answer = trace::scope(span.handle(), exchange(hook, registry, &review)).await;
    let answer = match answer.and_then(|answer| check(answer, &version, &uid)) {
        Ok(answer) => answer,
        Err(Failure(why)) => {
            span.fail(|| why.clone());
            return failed(hook, &why);
        }
    };
    drop(span);
    for warning in answer.items("warnings").iter().filter_map(Value::as_str) {
        attributes.context.record.warn(warning);
    }
    for (key, value) in answer.entries("auditAnnotations").into_iter().flatten() {
        let (key, value) = (format!("{}/{key}", hook.name), value.as_str().unwrap_or_default());
        if qualified_name(&key).is_empty() {
            attributes.context.record.annotate(key, value);
        } else {
            tracing::warn!(hook = hook.name, key, "failed to set audit annotation: not a qualified name");
        }
    }
    if !answer.flag("allowed") {
        *is_denied = true;
        return Err(denied(hook, answer.field("status")));
    }
    match (answer.opt_text("patch"), answer.text("patchType")) {
        (None, _) => Ok(WebhookOutcome::Allowed),
        (Some(patch), "JSONPatch") => {
            let decoded = STANDARD.decode(patch).ok();
            match decoded.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                Some(patch) => Ok(WebhookOutcome::Patched(patch)),
                None => failed(hook, "received undecodable patch in webhook response"),
            }
        }
        (Some(_), other) => failed(hook, &format!("unsupported patch type {other:?}")),
    }
}

fn failed(hook: &Hook, why: &str) -> Result<WebhookOutcome> {
    if hook.ignores_failure {
        tracing::warn!(hook = hook.name, why, "webhook failed, failing open");
        return Ok(WebhookOutcome::FailedOpen);
    }
    Err(Status::internal(format!("failed calling webhook {:?}: {why}", hook.name)))
}

async fn exchange(hook: &Hook, registry: &Registry, review: &Value) -> Result<Value, Failure> {
    let config = &hook.client_config;
    let query = format!("timeout={}s", hook.timeout.as_secs());
    let (shown, reached, server_name) = match config.opt_text("url") {
        Some(url) => {
            let url = with_query(url, &query);
            (url.clone(), url, None)
        }
        None => service(config.field("service"), registry, &query).await?,
    };
    let presented = || hook.users(&registry.admission.settings).of(&host_and_port(&shown));
    let client = hook.client(&reached, server_name, presented);
    let client = client.map_err(|error| Failure(error.to_string()))?;
    let answer = client.post(review, hook.timeout).await;
    answer.map_err(|error| Failure(format!("failed to call webhook: {}", call_error_text(&error, &shown))))
}

/// `host:port` of a URL.
fn host_and_port(url: &str) -> String {
    let uri: Option<http::Uri> = url.parse().ok();
    let authority = uri.as_ref().and_then(http::Uri::authority);
    authority.map_or(String::new(), |authority| match authority.port() {
        Some(_) => authority.to_string(),
        None => format!("{authority}:443"),
    })
}

/// A URL or path with this query. The path is cleaned as in client-go: empty and `.` segments and a trailing slash
/// are removed, `..` removes the segment before it.
pub fn with_query(url: &str, query: &str) -> String {
    let (url, parameters) =
        url.split_once('?').map_or((url, None), |(url, parameters)| (url, Some(parameters)));
    let start = match url.split_once("://") {
        Some((scheme, rest)) => scheme.len() + 3 + rest.find('/').unwrap_or(rest.len()),
        None => 0,
    };
    let (origin, path) = url.split_at(start);
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let parameters = parameters.map(|parameters| format!("{parameters}&")).unwrap_or_default();
    format!("{origin}/{}?{parameters}{query}", segments.join("/"))
}

/// URL for messages, URL to dial, and server name of the certificate.
pub async fn service(
    reference: &Value,
    registry: &Registry,
    query: &str,
) -> Result<(String, String, Option<String>), Failure> {
    let (namespace, name) = (reference.text("namespace"), reference.text("name"));
    let port = reference.opt_int("port").and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
    let path = reference.opt_text("path").unwrap_or("/");
    let failed = |why: String| Failure(format!("failed to call webhook: {why}"));
    let wanted = ServiceReference { namespace: namespace.to_owned(), name: name.to_owned(), port };
    let found = service_and_slices(registry, &wanted).await.map_err(|status| failed(status.message))?;
    let (Some(found), slices) = found else {
        return Err(failed(format!("service {name:?} not found")));
    };
    let (address, reached) =
        resolve_service(&wanted, &found, &slices, registry.tuning.service_routing).map_err(failed)?;
    let address = if address.contains(':') { format!("[{address}]") } else { address };
    let host = format!("{name}.{namespace}.svc");
    let path = with_query(path, query);
    Ok((format!("https://{host}:{port}{path}"), format!("https://{address}:{reached}{path}"), Some(host)))
}

/// Host and port to dial for a service. Headless services have endpoints only, ExternalName services neither
/// endpoints nor a cluster IP; another one without endpoints may still be served at its cluster IP.
fn resolve_service(
    wanted: &ServiceReference,
    service: &Value,
    slices: &[Value],
    routing: Routing,
) -> Result<(String, u16), String> {
    let spec = service.field("spec");
    let routing = match (spec.text("type"), spec.text("clusterIP")) {
        ("ExternalName", _) => Routing::Service,
        (_, "None") => Routing::Endpoints,
        _ => routing,
    };
    let found = resolve(wanted, service, slices, routing);
    match found {
        Err(_) if routing == Routing::Endpoints && !matches!(spec.text("clusterIP"), "" | "None") => {
            resolve(wanted, service, slices, Routing::Service)
        }
        found => found,
    }
}

/// Error text as Kubernetes words it.
pub fn call_error_text(error: &CallError, url: &str) -> String {
    let why = match error {
        CallError::Connect { place: server, source } if source.kind() == ErrorKind::ConnectionRefused => {
            format!("dial tcp {server}: connect: connection refused")
        }
        CallError::Connect { place: server, source } => format!("dial tcp {server}: {source}"),
        CallError::Timeout { .. } => "context deadline exceeded".to_owned(),
        CallError::Refused { status, .. } => {
            return format!("the server responded with status {}", status.as_u16());
        }
        other => other.chain(),
    };
    format!("Post {url:?}: {why}")
}

/// Response in a review, if it belongs to this request.
fn check(answer: Value, version: &str, uid: &str) -> Result<Value, Failure> {
    let invalid = |why: String| Failure(format!("received invalid webhook response: {why}"));
    let (parameters, kind) = (answer.text("apiVersion"), answer.text("kind"));
    if parameters != version || kind != "AdmissionReview" {
        return Err(invalid(format!(
            "expected webhook response of {version}, Kind=AdmissionReview, got {parameters}, Kind={kind}"
        )));
    }
    let response = answer.field("response");
    if !response.is_object() {
        return Err(invalid("webhook response was absent".to_owned()));
    }
    if response.text("uid") != uid {
        return Err(invalid(format!("expected response.uid={uid:?}, got {:?}", response.text("uid"))));
    }
    Ok(response.clone())
}

fn denied(hook: &Hook, result: &Value) -> Status {
    let by = format!("admission webhook {:?} denied the request", hook.name);
    let message = match (result.text("message"), result.text("reason")) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    // A denial always has an error code, whatever the webhook sent.
    let code = u16::try_from(result.int("code")).ok().filter(|code| (400..600).contains(code)).unwrap_or(400);
    let reason = match (result.text("reason"), code) {
        ("Forbidden", _) | ("", 403) => "Forbidden",
        ("Invalid", _) => "Invalid",
        ("NotFound", _) => "NotFound",
        ("Conflict", _) => "Conflict",
        ("AlreadyExists", _) => "AlreadyExists",
        ("TooManyRequests", _) => "TooManyRequests",
        ("Timeout", _) => "Timeout",
        ("InternalError", _) => "InternalError",
        ("MethodNotAllowed", _) => "MethodNotAllowed",
        ("BadRequest", _) => "BadRequest",
        _ => "",
    };
    Status::new(code, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_address_follows_its_type() {
        let wanted = ServiceReference { namespace: "n".to_owned(), name: "hook".to_owned(), port: 443 };
        let service = |kind: &str, ip: &str| {
            json!({"spec": {
                "type": kind, "clusterIP": ip, "externalName": "hook.example.com", "ports": [{"port": 443, "name": "x"}],
            }})
        };
        let slices = [json!({
            "addressType": "IPv4", "ports": [{"name": "x", "port": 8443}], "endpoints": [{"addresses": ["10.1.0.1"]}],
        })];
        let resolve_service = |service: &Value, slices: &[Value], routing| {
            super::resolve_service(&wanted, service, slices, routing)
        };
        let ordinary = service("ClusterIP", "10.0.0.7");
        let at = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(resolve_service(&ordinary, &slices, Routing::Endpoints), at("10.1.0.1", 8443));
        assert_eq!(resolve_service(&ordinary, &[], Routing::Endpoints), at("10.0.0.7", 443));
        assert_eq!(resolve_service(&ordinary, &slices, Routing::Service), at("10.0.0.7", 443));
        assert_eq!(
            resolve_service(&service("ClusterIP", "None"), &slices, Routing::Service),
            at("10.1.0.1", 8443)
        );
        assert!(resolve_service(&service("ClusterIP", "None"), &[], Routing::Service).is_err());
        let external = service("ExternalName", "");
        assert_eq!(resolve_service(&external, &[], Routing::Endpoints), at("hook.example.com", 443));
    }

    #[test]
    fn url_path_is_cleaned_before_the_query() {
        for (url, want) in [
            ("https://127.0.0.1:1//failing", "https://127.0.0.1:1/failing?timeout=1s"),
            ("https://a", "https://a/?timeout=1s"),
            ("https://a/b/../c/./d/?x=//y", "https://a/c/d?x=//y&timeout=1s"),
            ("/", "/?timeout=1s"),
            ("hook", "/hook?timeout=1s"),
        ] {
            assert_eq!(with_query(url, "timeout=1s"), want, "{url}");
        }
    }
}
