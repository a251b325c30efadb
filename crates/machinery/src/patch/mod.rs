//! JSON patch, JSON merge patch, strategic merge patch.
//!
//! Each has one entry point, `apply(&mut object, &patch, …)`; after an error the object is partly patched and must be
//! discarded.

pub mod json_patch;
pub mod merge;
pub mod strategic;

use crate::status::{Details, Status};
use serde_json::Value;

/// Reason why a patch was rejected, by its API response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed (400).
    #[error("{0}")]
    BadRequest(String),
    /// The patch does not match the object (422). The API hides the text from clients.
    #[error("{0}")]
    Unprocessable(String),
    /// The patch exceeds the work limits (413).
    #[error("{0}")]
    TooLarge(String),
    /// A failure that Kubernetes reports without a reason (500).
    #[error("{0}")]
    Internal(String),
}

impl From<PatchError> for Status {
    fn from(error: PatchError) -> Self {
        match error {
            PatchError::BadRequest(text) => Status::bad_request(text),
            PatchError::Unprocessable(_) => {
                Status::new(422, "Invalid", "the server rejected our request due to an error in our request")
                    .with_details(Details::default())
            }
            PatchError::TooLarge(text) => Status::too_large(format!("Request entity too large: {text}")),
            PatchError::Internal(text) => Status::new(500, "", text),
        }
    }
}

/// A value in the Go format of Kubernetes' messages: `map[a:1 b:[x y]]`.
pub fn show_plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(show_plain).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let fields: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", show_plain(v))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

/// Nesting depth of a value.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
