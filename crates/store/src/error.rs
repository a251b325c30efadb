//! What can go wrong in a store, in the words its callers need to decide what to do next.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::contract::{LeaseId, Revision};

/// Result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Failure of a store operation. Cheap to clone: one failed commit answers many callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The history at this revision is gone.
    #[error("revision {requested} has been compacted; the oldest one kept is {compacted}")]
    Compacted { requested: Revision, compacted: Revision },
    /// The revision has not happened yet.
    #[error("revision {requested} is in the future; the store is at {current}")]
    FutureRevision { requested: Revision, current: Revision },
    /// The lease never existed, was revoked or ran out.
    #[error("lease {0} not found")]
    LeaseNotFound(LeaseId),
    /// Key and value together exceed what the backend takes.
    #[error("{key}: {size} bytes exceed the limit of {limit}")]
    TooLarge { key: Arc<str>, size: usize, limit: usize },
    /// The disk is full. Nothing was written; writing resumes by itself once there is room.
    #[error("no space left for the store's log")]
    NoSpace,
    /// The store has reached its size limit. Deleting is possible; other writes are refused until there is room again. The
    /// message is etcd's.
    #[error("etcdserver: mvcc: database space exceeded")]
    QuotaExceeded,
    /// The disk failed while making data durable. Nothing can be written until a restart has
    /// established what is on it; reads go on.
    #[error("the store takes no writes until it is restarted: {reason}")]
    Poisoned { reason: Arc<str> },
    /// The backend cannot be reached or has no leader. The operation had no effect and may be retried.
    #[error("store unavailable: {reason}")]
    Unavailable { reason: Arc<str> },
    /// The connection broke after a write was sent: it may or may not have happened.
    #[error("the outcome of the write to {key} is unknown: {reason}")]
    OutcomeUnknown { key: Arc<str>, reason: Arc<str> },
    /// The backend refused the request for a reason of its own (authentication, quota, bad key).
    #[error("the store refused the request: {reason}")]
    Refused { reason: Arc<str> },
    /// A value is there, but what is wrapped around the store cannot make sense of it.
    #[error("unable to transform key {key:?}: {reason}")]
    Unreadable { key: Arc<str>, reason: Arc<str> },
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
    /// Another process (or another instance in this one) holds the data directory.
    #[error("{} is in use by another process", .path.display())]
    Locked { path: PathBuf },
    /// A file of the store is damaged in a way that a crash cannot explain.
    #[error("{} is corrupt: {reason}", .path.display())]
    Corrupt { path: PathBuf, reason: Arc<str> },
    /// An operation on a file failed.
    #[error("{operation} {}", .path.display())]
    Io { operation: &'static str, path: PathBuf, source: Arc<io::Error> },
}

impl StoreError {
    /// Whether the same call may succeed later, and is known to have had no effect so far.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::NoSpace)
    }

    pub(crate) fn corrupt(path: impl Into<PathBuf>, reason: impl Into<Arc<str>>) -> Self {
        Self::Corrupt { path: path.into(), reason: reason.into() }
    }

    /// For `map_err` on file operations.
    pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source: Arc::new(source) }
    }
}
