//! Asks one hook, and makes sense of its answer.

use super::hook::{self, Hook};
use crate::admission::Attributes;
use crate::aggregate::{Routing, ServiceReference, resolve, service_and_slices};
use crate::outbound::CallError;
use crate::registry::Registry;
use api::value::Fields;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::Value;
use machinery::names::qualified_name;
use machinery::status::{Result, Status};
use serde_json::json;
use std::io::ErrorKind;

/// What a hook lets happen.
pub enum Outcome {
    Allowed,
    /// The hook failed, and its failure policy ignores that.
    FailedOpen,
    /// A list of JSON patch operations.
    Patched(Value),
}

/// Why a hook could not be asked.
pub struct Failure(pub String);

/// The hook's answer; a refusal is an error, and so is a hook that cannot answer unless it may be ignored.
pub async fn ask(
    hook: &Hook,
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Outcome> {
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
    let answer =
        match exchange(hook, registry, &review).await.and_then(|answer| check(answer, &version, &uid)) {
            Ok(answer) => answer,
            Err(Failure(why)) => return failed(hook, &why),
        };
    for warning in answer.items("warnings").iter().filter_map(Value::as_str) {
        attributes.context.warnings.add(warning);
    }
    for (key, value) in answer.entries("auditAnnotations").into_iter().flatten() {
        let (key, value) = (format!("{}/{key}", hook.name), value.as_str().unwrap_or_default());
        if qualified_name(&key).is_empty() {
            attributes.context.warnings.annotate(key, value);
        } else {
            tracing::warn!(hook = hook.name, key, "failed to set audit annotation: not a qualified name");
        }
    }
    if !answer.flag("allowed") {
        return Err(denied(hook, answer.field("status")));
    }
    match (answer.opt_text("patch"), answer.text("patchType")) {
        (None, _) => Ok(Outcome::Allowed),
        (Some(patch), "JSONPatch") => {
            let decoded = STANDARD.decode(patch).ok();
            match decoded.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                Some(patch) => Ok(Outcome::Patched(patch)),
                None => failed(hook, "received undecodable patch in webhook response"),
            }
        }
        (Some(_), other) => failed(hook, &format!("unsupported patch type {other:?}")),
    }
}

fn failed(hook: &Hook, why: &str) -> Result<Outcome> {
    if hook.ignores_failure {
        tracing::warn!(hook = hook.name, why, "webhook failed, and is ignored");
        return Ok(Outcome::FailedOpen);
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
    answer.map_err(|error| Failure(format!("failed to call webhook: {}", words(&error, &shown))))
}

/// The `host:port` of a URL.
fn host_and_port(url: &str) -> String {
    let uri: Option<http::Uri> = url.parse().ok();
    let authority = uri.as_ref().and_then(http::Uri::authority);
    authority.map_or(String::new(), |authority| match authority.port() {
        Some(_) => authority.to_string(),
        None => format!("{authority}:443"),
    })
}

/// A URL or path with this query. Its path is cleaned as clients of Kubernetes do it: empty and `.` segments and a slash
/// at the end go, `..` removes the segment before it.
pub fn with_query(url: &str, query: &str) -> String {
    let (url, given) = url.split_once('?').map_or((url, None), |(url, given)| (url, Some(given)));
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
    let given = given.map(|given| format!("{given}&")).unwrap_or_default();
    format!("{origin}/{}?{given}{query}", segments.join("/"))
}

/// As it is shown, as it is reached, and the name in its certificate.
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
        way(&wanted, &found, &slices, registry.tuning.service_routing).map_err(failed)?;
    let address = if address.contains(':') { format!("[{address}]") } else { address };
    let host = format!("{name}.{namespace}.svc");
    let path = with_query(path, query);
    Ok((format!("https://{host}:{port}{path}"), format!("https://{address}:{reached}{path}"), Some(host)))
}

/// Host and port at which a service is reached. Headless services have endpoints only, external ones neither endpoints nor an
/// address; an ordinary one without endpoints may still be served by others at its address.
fn way(
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

/// What went wrong, in the words that users know.
pub fn words(error: &CallError, url: &str) -> String {
    let why = match error {
        CallError::Connect { place, source } if source.kind() == ErrorKind::ConnectionRefused => {
            format!("dial tcp {place}: connect: connection refused")
        }
        CallError::Connect { place, source } => format!("dial tcp {place}: {source}"),
        CallError::Timeout { .. } => "context deadline exceeded".to_owned(),
        CallError::Refused { status, .. } => {
            return format!("the server responded with status {}", status.as_u16());
        }
        other => other.chain(),
    };
    format!("Post {url:?}: {why}")
}

/// The response in an answer, if it is one to this request.
fn check(answer: Value, version: &str, uid: &str) -> Result<Value, Failure> {
    let invalid = |why: String| Failure(format!("received invalid webhook response: {why}"));
    let (given, kind) = (answer.text("apiVersion"), answer.text("kind"));
    if given != version || kind != "AdmissionReview" {
        return Err(invalid(format!(
            "expected webhook response of {version}, Kind=AdmissionReview, got {given}, Kind={kind}"
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
    // Whoever refuses does not succeed.
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
    fn way_to_a_service_follows_its_type() {
        let wanted = ServiceReference { namespace: "n".to_owned(), name: "hook".to_owned(), port: 443 };
        let service = |kind: &str, ip: &str| {
            json!({"spec": {
                "type": kind, "clusterIP": ip, "externalName": "hook.example.com", "ports": [{"port": 443, "name": "x"}],
            }})
        };
        let slices = [json!({
            "addressType": "IPv4", "ports": [{"name": "x", "port": 8443}], "endpoints": [{"addresses": ["10.1.0.1"]}],
        })];
        let way = |service: &Value, slices: &[Value], routing| super::way(&wanted, service, slices, routing);
        let ordinary = service("ClusterIP", "10.0.0.7");
        let at = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(way(&ordinary, &slices, Routing::Endpoints), at("10.1.0.1", 8443));
        assert_eq!(way(&ordinary, &[], Routing::Endpoints), at("10.0.0.7", 443));
        assert_eq!(way(&ordinary, &slices, Routing::Service), at("10.0.0.7", 443));
        assert_eq!(way(&service("ClusterIP", "None"), &slices, Routing::Service), at("10.1.0.1", 8443));
        assert!(way(&service("ClusterIP", "None"), &[], Routing::Service).is_err());
        let external = service("ExternalName", "");
        assert_eq!(way(&external, &[], Routing::Endpoints), at("hook.example.com", 443));
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
