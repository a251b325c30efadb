//! The only error type on the wire: Kubernetes' `Status`.

use crate::field::{ErrorList, FieldError, show_str};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::fmt;

/// A failure (or, rarely, a success) as the API reports it.
///
/// ```
/// use machinery::status::Status;
///
/// let status = Status::not_found("apps", "deployments", "web");
/// assert_eq!((status.code, status.reason), (404, "NotFound"));
/// assert_eq!(status.to_value()["details"]["group"], "apps");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub code: u16,
    /// Empty for failures without a reason of their own.
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Box<Details>>,
    /// List metadata of the Status itself: only an expired continue token has some.
    pub continue_token: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    pub name: String,
    pub group: String,
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    pub retry_after_seconds: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

pub type Result<T, E = Status> = std::result::Result<T, E>;

/// `pods` or `deployments.apps`, the form of a resource in messages.
pub fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl Status {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, continue_token: None }
    }

    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    fn about(self, group: &str, kind: &str, name: &str) -> Self {
        self.with_details(Details {
            group: group.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            ..Details::default()
        })
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// `resource` is the plural, possibly with a subresource: `pods/log`.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: impl fmt::Display) -> Self {
        let what = qualified(group, resource);
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {} is forbidden: {why}", show_str(name))
        };
        Self::new(403, "Forbidden", message).about(group, resource, name)
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {} not found", qualified(group, resource), show_str(name)))
            .about(group, resource, name)
    }

    /// A path without a resource.
    pub fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
            .with_details(Details::default())
    }

    pub fn method_not_allowed(group: &str, resource: &str, verb: &str) -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            format!("{verb} is not supported on resources of kind {:?}", qualified(group, resource)),
        )
        .about(group, resource, "")
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            format!("{} {} already exists", qualified(group, resource), show_str(name)),
        )
        .about(group, resource, name)
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: impl fmt::Display) -> Self {
        Self::new(
            409,
            "Conflict",
            format!(
                "Operation cannot be fulfilled on {} {}: {why}",
                qualified(group, resource),
                show_str(name)
            ),
        )
        .about(group, resource, name)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(410, "Gone", message)
    }

    /// Fields were rejected. `kind` is the kind, not the plural: `Pod "x" is invalid: …`. Errors are omitted from the
    /// first one without text on.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &ErrorList) -> Self {
        let shown = errors.iter().position(FieldError::is_omitted).unwrap_or(errors.len());
        let errors = &errors[..shown];
        let causes = errors
            .iter()
            .map(|e| Cause { reason: e.kind.reason().to_owned(), message: e.body(), field: e.field.clone() })
            .collect();
        let mut status = Self::new(
            422,
            "Invalid",
            format!("{} {} is invalid: {}", qualified(group, kind), show_str(name), aggregate(errors)),
        )
        .about(group, kind, name);
        if let Some(details) = &mut status.details {
            details.causes = causes;
        }
        status
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, "NotAcceptable", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message)
            .with_details(Details { retry_after_seconds, ..Details::default() })
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}")).with_details(Details {
            causes: vec![Cause { message: message.to_string(), ..Cause::default() }],
            ..Details::default()
        })
    }

    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub fn timeout(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(504, "Timeout", message).with_details(Details { retry_after_seconds, ..Details::default() })
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".to_owned(), json!(token));
        }
        let mut object = Map::new();
        object.insert("kind".to_owned(), json!("Status"));
        object.insert("apiVersion".to_owned(), json!("v1"));
        object.insert("metadata".to_owned(), Value::Object(metadata));
        object.insert("status".to_owned(), json!(if self.code < 400 { "Success" } else { "Failure" }));
        if !self.message.is_empty() {
            object.insert("message".to_owned(), json!(self.message));
        }
        if !self.reason.is_empty() {
            object.insert("reason".to_owned(), json!(self.reason));
        }
        if let Some(details) = &self.details {
            object.insert("details".to_owned(), details.to_value());
        }
        object.insert("code".to_owned(), json!(self.code));
        Value::Object(object)
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut object = Map::new();
        for (field, text) in
            [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)]
        {
            if !text.is_empty() {
                object.insert(field.to_owned(), json!(text));
            }
        }
        if !self.causes.is_empty() {
            let causes: Vec<Value> = self.causes.iter().map(Cause::to_value).collect();
            object.insert("causes".to_owned(), Value::Array(causes));
        }
        if self.retry_after_seconds > 0 {
            object.insert("retryAfterSeconds".to_owned(), json!(self.retry_after_seconds));
        }
        Value::Object(object)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut object = Map::new();
        for (field, text) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !text.is_empty() {
                object.insert(field.to_owned(), json!(text));
            }
        }
        Value::Object(object)
    }
}

/// One error unchanged; several as `[a, b]`, without duplicates.
fn aggregate(errors: &[FieldError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    aggregate_texts(&texts)
}

/// The same for texts that belong to no field.
pub fn aggregate_texts(texts: &[String]) -> String {
    let mut seen = HashSet::with_capacity(texts.len());
    let once: Vec<&str> = texts.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect();
    match once.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}
