//! One audit event in the form of `audit.k8s.io/v1`.

use super::policy::{Level, Stage};
use crate::user::UserInfo;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Beginning of an event that is not part of a list.
const HEAD: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1""#;
/// Annotation of events whose objects were omitted because of their size.
const TRUNCATED: &str = "audit.k8s.io/truncated";

#[derive(Clone, Debug)]
pub struct Event<'a> {
    pub level: Level,
    pub audit_id: &'a str,
    pub stage: Stage,
    pub request_uri: &'a str,
    pub verb: &'a str,
    pub user: User<'a>,
    pub impersonated_user: Option<User<'a>>,
    pub source_ips: &'a [IpAddr],
    pub user_agent: &'a str,
    pub object_ref: Option<ObjectRef<'a>>,
    pub response_status: Option<&'a ResponseStatus>,
    pub request_object: Option<&'a Value>,
    pub response_object: Option<&'a Value>,
    pub request_received_timestamp: Timestamp,
    pub stage_timestamp: Timestamp,
    /// Sorted by key.
    pub annotations: Vec<(&'a str, &'a str)>,
    pub encoded: OnceCell<Bytes>,
}

/// Response status: the code, and further fields of a `Status` body.
#[derive(Clone, Debug)]
pub struct ResponseStatus {
    pub code: u16,
    pub error_status: Option<Value>,
}

/// User information of an event.
#[derive(Clone, Debug, Default)]
pub struct User<'a> {
    pub(super) username: &'a str,
    pub(super) uid: &'a str,
    pub(super) groups: &'a [String],
    pub(super) extra: Option<&'a BTreeMap<String, Vec<String>>>,
}

impl<'a> From<&'a UserInfo> for User<'a> {
    fn from(user: &'a UserInfo) -> Self {
        Self {
            username: &user.name,
            uid: &user.uid,
            groups: &user.groups,
            extra: (!user.extra.is_empty()).then_some(&user.extra),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ObjectRef<'a> {
    pub resource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub api_group: &'a str,
    pub api_version: &'a str,
    pub resource_version: &'a str,
    pub subresource: &'a str,
}

impl Event<'_> {
    /// JSON without kind and apiVersion: an item of an EventList.
    fn item(&self) -> Bytes {
        let encode = || {
            let mut out = Vec::with_capacity(1024);
            self.write(&mut out);
            out.into()
        };
        self.encoded.get_or_init(encode).clone()
    }

    /// An item of at most `limit` bytes, without its objects if necessary; `None` if it still exceeds the limit.
    pub fn item_within(&self, limit: usize) -> Option<Bytes> {
        let whole = self.item();
        if whole.len() <= limit {
            return Some(whole);
        }
        let mut less =
            Event { request_object: None, response_object: None, encoded: OnceCell::new(), ..self.clone() };
        less.annotations.push((TRUNCATED, "true"));
        less.annotations.sort_unstable();
        Some(less.item()).filter(|less| self.level >= Level::Request && less.len() <= limit)
    }

    /// Appends the event as a log line. An event larger than `limit` loses its objects; returns `false` and writes
    /// nothing if it still exceeds the limit.
    pub fn write_line(&self, out: &mut Vec<u8>, limit: usize) -> bool {
        let start = out.len();
        out.extend_from_slice(HEAD.as_bytes());
        let item = out.len();
        self.write(out);
        if out.len() - item <= limit {
            // The object continues after the head.
            out[item] = b',';
        } else {
            out.truncate(item);
            let Some(less) = self.item_within(limit).filter(|less| less.starts_with(b"{")) else {
                out.truncate(start);
                return false;
            };
            out.push(b',');
            out.extend_from_slice(&less[1..]);
        }
        out.push(b'\n');
        true
    }

    /// One line of text in the legacy log format.
    pub fn legacy(&self) -> String {
        let list = |values: &[String]| {
            let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
            quoted.join(",")
        };
        let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
        let as_user = self.impersonated_user.as_ref();
        let code = self.response_status.map(|status| status.code.to_string());
        format!(
            "{} AUDIT: id={:?} stage=\"{:?}\" ip={:?} method={:?} user={:?} groups={:?} as={:?} asgroups={:?} user-agent={:?} namespace={:?} uri={:?} response=\"{}\"",
            format_args!("{:.6}", self.request_received_timestamp),
            self.audit_id,
            self.stage,
            self.source_ips.first().map_or("<unknown>".to_owned(), ToString::to_string),
            self.verb,
            or(self.user.username, "<none>"),
            or(&list(self.user.groups), "<none>"),
            as_user.map_or("<self>", |user| user.username),
            as_user.map_or("<lookup>".to_owned(), |user| list(user.groups)),
            self.user_agent,
            or(self.object_ref.as_ref().map_or("", |object| object.namespace), "<none>"),
            self.request_uri,
            code.as_deref().unwrap_or("<deferred>"),
        )
    }
}

/// Removes managedFields from an object, or from the items of a list.
pub fn without_managed_fields(object: &mut Value) {
    let forget = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    forget(object);
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event<'a>(object: &'a Value, status: &'a ResponseStatus) -> Event<'a> {
        Event {
            level: Level::Request,
            audit_id: "id",
            stage: Stage::ResponseComplete,
            request_uri: "/api/v1/namespaces/n/pods",
            verb: "create",
            user: User { username: "alice", ..User::default() },
            impersonated_user: None,
            source_ips: &[],
            user_agent: "",
            object_ref: Some(ObjectRef {
                resource: "pods",
                namespace: "n",
                api_version: "v1",
                ..ObjectRef::default()
            }),
            response_status: Some(status),
            request_object: Some(object),
            response_object: None,
            request_received_timestamp: "2026-01-02T03:04:05Z".parse().expect("a time"),
            stage_timestamp: "2026-01-02T03:04:05.1234567Z".parse().expect("a time"),
            annotations: Vec::new(),
            encoded: OnceCell::new(),
        }
    }

    #[test]
    fn event_line_matches_kubernetes_format() {
        let (object, status) =
            (json!({"a": "x".repeat(1000)}), ResponseStatus { code: 201, error_status: None });
        let event = event(&object, &status);
        let line = |limit| {
            let mut out = b"before".to_vec();
            event.write_line(&mut out, limit).then(|| String::from_utf8(out).expect("text"))
        };
        let text = line(500).expect("without the object");
        assert_eq!(
            text,
            r#"before{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"id","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/n/pods","verb":"create","user":{"username":"alice"},"objectRef":{"resource":"pods","namespace":"n","apiVersion":"v1"},"responseStatus":{"code":201,"metadata":{}},"requestReceivedTimestamp":"2026-01-02T03:04:05.000000Z","stageTimestamp":"2026-01-02T03:04:05.123456Z","annotations":{"audit.k8s.io/truncated":"true"}}
"#
        );
        assert_eq!(line(100), None);
        let whole = line(5000).expect("all of it");
        let whole: Value =
            serde_json::from_str(whole.strip_prefix("before").expect("after it")).expect("JSON");
        assert_eq!((&whole["kind"], &whole["requestObject"]), (&json!("Event"), &object));
        assert!(event.item().len() > 500);
        let legacy = event.legacy();
        assert!(legacy.contains(r#"method="create" user="alice" groups="<none>" as="<self>""#), "{legacy}");
        assert!(legacy.ends_with(r#"response="201""#), "{legacy}");
    }

    #[test]
    fn event_of_rejected_request_has_status_reason() {
        let error_status = machinery::status::Status::bad_request("no").to_value();
        let (object, status) = (json!({}), ResponseStatus { code: 400, error_status: Some(error_status) });
        let mut refused = event(&object, &status);
        let groups = ["a".to_owned(), "b".to_owned()];
        let extra = BTreeMap::from([("k".to_owned(), vec!["v\"".to_owned()])]);
        refused.impersonated_user = Some(User { groups: &groups, extra: Some(&extra), ..User::default() });
        let source = [IpAddr::from([127, 0, 0, 1])];
        refused.source_ips = &source;
        let refused: Value = serde_json::from_slice(&refused.item()).expect("JSON");
        assert_eq!(refused["impersonatedUser"], json!({"groups": ["a", "b"], "extra": {"k": ["v\""]}}));
        assert_eq!(refused["sourceIPs"], json!(["127.0.0.1"]));
        assert_eq!(
            refused["responseStatus"],
            json!({"code": 400, "message": "no", "metadata": {}, "reason": "BadRequest", "status": "Failure"})
        );
    }

    #[test]
    fn without_managed_fields_removes_them_from_lists_too() {
        let mut list = json!({"metadata": {}, "items": [{"metadata": {"name": "a", "managedFields": []}}]});
        without_managed_fields(&mut list);
        assert_eq!(list["items"][0], json!({"metadata": {"name": "a"}}));
    }
}
