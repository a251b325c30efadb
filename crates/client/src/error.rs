//! Why a request failed.

use std::time::Duration;

use objects::meta::v1::Status;

use crate::{KubeconfigError, TransportError};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server's own words, as events and conditions quote them.
    #[error("{}", .status.message.as_deref().unwrap_or("the server gave no reason"))]
    Status { status: Box<Status>, retry_after: Option<Duration> },
    #[error("{verb} {path}")]
    Transport { verb: String, path: String, source: Box<TransportError> },
    #[error("{verb} {path}: no answer within {limit:?}")]
    Timeout { verb: String, path: String, limit: Duration },
    #[error("encoding an object")]
    Encode(#[source] serde_json::Error),
    #[error("{verb} {path}: the answer is not what was asked for")]
    Decode { verb: String, path: String, source: serde_json::Error },
    #[error("a watch event of {0} bytes is too long")]
    LongEvent(usize),
    #[error("making a client of an identity")]
    Identity(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("reading the kubeconfig")]
    Kubeconfig(#[source] Box<KubeconfigError>),
}

impl From<KubeconfigError> for ClientError {
    fn from(error: KubeconfigError) -> Self {
        Self::Kubeconfig(Box::new(error))
    }
}

impl ClientError {
    /// The server's refusal, if it was one.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Whether an object came that could not be read.
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

    /// The revision asked for is no longer kept.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.code() == Some(410) || matches!(self.reason(), "Expired" | "Gone")
    }

    /// Whether the namespace of the object is going away: creating in it will never succeed.
    #[must_use]
    pub fn is_namespace_terminating(&self) -> bool {
        let causes = self.status().and_then(|status| status.details.as_ref()).and_then(|d| d.causes.as_ref());
        self.is_forbidden()
            && causes.is_some_and(|causes| {
                causes.iter().any(|cause| cause.reason.as_deref() == Some("NamespaceTerminating"))
            })
    }

    /// When the server wants to be asked again.
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
