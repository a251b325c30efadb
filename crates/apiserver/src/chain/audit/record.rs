//! Data of one audited request, collected along the chain.

use super::event::{Event, ObjectRef, ResponseStatus, User, without_managed_fields};
use super::policy::{Level, Ruling, Stage};
use crate::context::Context;
use crate::request_info::RequestInfo;
use crate::user::UserInfo;
use crate::wire::encode;
use http::HeaderValue;
use jiff::Timestamp;
use machinery::codec;
use machinery::status::Status;
use parking_lot::Mutex;
use serde_json::Value;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

/// Longest recorded user agent.
const MAX_USER_AGENT: usize = 1024;
const MAX_ANNOTATION: usize = 8 * 1024;

/// An audited request. It shares the request's existing data; everything else is computed when an event is written.
pub struct Record {
    pub ruling: Ruling,
    /// True if the built-in log records it, too.
    pub audit_log: bool,
    id: HeaderValue,
    received: Timestamp,
    uri: http::Uri,
    info: Arc<RequestInfo>,
    user: Arc<UserInfo>,
    source_ips: Vec<IpAddr>,
    user_agent: Option<HeaderValue>,
    gathered: Mutex<RecordedFields>,
}

#[derive(Default)]
struct RecordedFields {
    impersonated: Option<Arc<UserInfo>>,
    /// Fields of the object reference that the path lacks.
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    annotations: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    request_object: Option<Value>,
    response_object: Option<Value>,
    status: Option<ResponseStatus>,
}

impl Record {
    pub fn new(
        context: &Context,
        id: &HeaderValue,
        ruling: Ruling,
        audit_log: bool,
        received: Timestamp,
        source_ips: Vec<IpAddr>,
    ) -> Self {
        Self {
            ruling,
            audit_log,
            id: id.clone(),
            received,
            uri: context.uri.clone(),
            info: context.info.clone(),
            user: context.user.clone(),
            source_ips,
            user_agent: context.headers.get(http::header::USER_AGENT).cloned(),
            gathered: Mutex::default(),
        }
    }

    pub fn impersonate(&self, user: Arc<UserInfo>) {
        self.gathered.lock().impersonated = Some(user);
    }

    /// Sets an annotation, unless it is set already.
    pub fn annotate(&self, key: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) {
        let (key, mut value) = (key.into(), value.into());
        if value.len() > MAX_ANNOTATION {
            value = bounded(&value, MAX_ANNOTATION, "...").into_owned().into();
        }
        let mut gathered = self.gathered.lock();
        if gathered.annotations.iter().all(|(known, _)| *known != key) {
            gathered.annotations.push((key, value));
        }
    }

    /// Object of a write as sent: it may have fields of the reference that the path lacks.
    pub fn object(&self, object: &Value) {
        use machinery::meta;
        let mut gathered = self.gathered.lock();
        gathered.name = meta::name(object).to_owned();
        gathered.namespace = meta::namespace(object).to_owned();
        gathered.uid = meta::uid(object).to_owned();
        gathered.resource_version = meta::resource_version(object).to_owned();
    }

    /// Generated name of a new object.
    pub fn generated_name(&self, name: &str) {
        let mut gathered = self.gathered.lock();
        if gathered.name.is_empty() {
            name.clone_into(&mut gathered.name);
        }
    }

    pub fn wants_request(&self) -> bool {
        self.ruling.level >= Level::Request
    }

    pub fn wants_response(&self) -> bool {
        self.ruling.level >= Level::RequestResponse
    }

    /// Records the request body.
    pub fn request_body(&self, bytes: &[u8], content_type: &str) {
        let object = self.readable(bytes, content_type);
        self.gathered.lock().request_object = object;
    }

    /// Records the response body.
    pub fn response_body(&self, bytes: &[u8], content_type: &str) {
        let object = self.readable(bytes, content_type);
        self.gathered.lock().response_object = object;
    }

    fn readable(&self, bytes: &[u8], content_type: &str) -> Option<Value> {
        let mut value = decode(bytes, content_type)?;
        if self.ruling.omit_managed_fields {
            without_managed_fields(&mut value);
        }
        Some(value)
    }

    /// Response status; a `Status` body has more than the code.
    pub fn answered(&self, code: u16, status: Option<&Status>) {
        let error_status = status.map(Status::to_value);
        self.gathered.lock().status = Some(ResponseStatus { code, error_status });
    }

    /// Builds the event of a stage and passes it to `take`.
    pub fn event<T>(
        &self,
        stage: Stage,
        level: Level,
        now: Timestamp,
        take: impl FnOnce(&Event<'_>) -> T,
    ) -> T {
        let (gathered, path) = (self.gathered.lock(), &*self.info);
        let object_ref = path.is_resource.then(|| ObjectRef {
            resource: &path.resource,
            namespace: either(&path.namespace, &gathered.namespace),
            name: either(&path.name, &gathered.name),
            uid: &gathered.uid,
            api_group: &path.group,
            api_version: &path.version,
            resource_version: &gathered.resource_version,
            subresource: &path.subresource,
        });
        let agent = self.user_agent.as_ref().and_then(|agent| agent.to_str().ok()).unwrap_or("");
        let mut annotations: Vec<(&str, &str)> =
            gathered.annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
        annotations.sort_unstable();
        let event = Event {
            level,
            audit_id: self.id.to_str().unwrap_or(""),
            stage,
            request_uri: self.uri.path_and_query().map_or(self.uri.path(), |uri| uri.as_str()),
            verb: path.verb.as_str(),
            user: User::from(&*self.user),
            impersonated_user: gathered.impersonated.as_deref().map(User::from),
            source_ips: &self.source_ips,
            user_agent: &bounded(agent, MAX_USER_AGENT, "...TRUNCATED"),
            object_ref,
            response_status: gathered.status.as_ref(),
            request_object: gathered.request_object.as_ref().filter(|_| level >= Level::Request),
            response_object: gathered.response_object.as_ref().filter(|_| level >= Level::RequestResponse),
            request_received_timestamp: self.received,
            stage_timestamp: now,
            annotations,
            encoded: OnceCell::new(),
        };
        take(&event)
    }
}

/// First value, if it is not empty.
fn either<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

/// Decodes a body of any supported encoding; `None` if it cannot be decoded.
fn decode(bytes: &[u8], content_type: &str) -> Option<Value> {
    if bytes.is_empty() {
        return None;
    }
    match content_type.split(';').next().unwrap_or("").trim() {
        "application/vnd.kubernetes.protobuf" => {
            let envelope = codec::protobuf::unwrap(bytes).ok()?;
            let schema = encode::schema_of(&envelope.api_version, &envelope.kind)?;
            let mut value = codec::protobuf::decode_object(envelope.raw, schema).ok()?;
            if let Some(object) = value.as_object_mut() {
                object.insert("apiVersion".to_owned(), envelope.api_version.into());
                object.insert("kind".to_owned(), envelope.kind.into());
            }
            Some(value)
        }
        "application/yaml" | "application/apply-patch+yaml" => {
            codec::yaml::decode(bytes).ok().map(|decoded| decoded.value)
        }
        "application/cbor" | "application/apply-patch+cbor" => codec::cbor::decode(bytes).ok(),
        _ => serde_json::from_slice(bytes).ok(),
    }
}

fn bounded<'a>(text: &'a str, limit: usize, mark: &str) -> Cow<'a, str> {
    if text.len() <= limit {
        return text.into();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{mark}", &text[..end]).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bounded_text_is_cut_at_char_boundary() {
        assert_eq!(bounded("aé", 2, "..."), "a...");
        assert_eq!(bounded("short", 10, "..."), "short");
    }

    #[test]
    fn audit_body_decodes_in_any_encoding() {
        assert_eq!(decode(b"{\"a\":1}", "application/json; charset=utf-8"), Some(json!({"a": 1})));
        assert_eq!(decode(b"a: 1\n", "application/apply-patch+yaml"), Some(json!({"a": 1})));
        assert_eq!(decode(b"[{\"op\":\"x\"}]", "application/json-patch+json"), Some(json!([{"op": "x"}])));
        assert_eq!(decode(b"rubbish", "application/json"), None);
        assert_eq!(decode(b"", "application/json"), None);
    }
}
