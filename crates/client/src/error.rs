//! Errors of requests.

use std::time::Duration;

use objects::meta::v1::Status;

use crate::{KubeconfigError, TransportError};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server's message, quoted in events and conditions.
    #[error("{}", .status.message.as_deref().unwrap_or("the server gave no reason"))]
    Status { status: Box<Status>, retry_after: Option<Duration> },
    #[error("{verb} {path}")]
    Transport { verb: String, path: String, source: Box<TransportError> },
    #[error("{verb} {path}: no response within {limit:?}")]
    Timeout { verb: String, path: String, limit: Duration },
    #[error("failed to encode object")]
    Encode(#[source] serde_json::Error),
    #[error("{verb} {path}: failed to decode the response")]
    Decode { verb: String, path: String, source: serde_json::Error },
    #[error("watch event of {0} bytes exceeds the limit")]
    LongEvent(usize),
    #[error("failed to create a client for an identity")]
    Identity(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to load kubeconfig")]
    Kubeconfig(#[source] Box<KubeconfigError>),
}

impl From<KubeconfigError> for ClientError {
    fn from(error: KubeconfigError) -> Self {
        Self::Kubeconfig(Box::new(error))
    }
}

impl ClientError {
    /// The server's `Status`, if it rejected the request.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status { status, .. } => Some(status),
            _ => None,
        }
    }

    /// True if a received object could not be decoded.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Decode { .. })
    }

    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status()?.code
    }

    #[must_use]
    pub fn reason(&self) -> &str {
        self.status().and_then(|status| status.reason.as_deref()).unwrap_or_default()
    }

    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.reason() == "NotFound" || (self.code() == Some(404) && self.reason().is_empty())
    }

    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.reason() == "Forbidden"
    }

    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.reason() == "Invalid"
    }

    /// True if the requested revision has been compacted.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.code() == Some(410) || matches!(self.reason(), "Expired" | "Gone")
    }

    /// True if the object's namespace is terminating: creating in it will never succeed.
    #[must_use]
    pub fn is_namespace_terminating(&self) -> bool {
        let causes = self.status().and_then(|status| status.details.as_ref()).and_then(|d| d.causes.as_ref());
        self.is_forbidden()
            && causes.is_some_and(|causes| {
                causes.iter().any(|cause| cause.reason.as_deref() == Some("NamespaceTerminating"))
            })
    }

    /// Delay that the server requests before a retry.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { status, retry_after } => retry_after.or_else(|| {
                let seconds = status.details.as_ref()?.retry_after_seconds?;
                Some(Duration::from_secs(u64::try_from(seconds).ok()?))
            }),
            _ => None,
        }
    }
}
