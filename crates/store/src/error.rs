//! Store errors, classified by how callers should react.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::contract::{LeaseId, Revision};

/// Result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Failure of a store operation. Cheap to clone: one failed commit is returned to many callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The history at this revision has been compacted.
    #[error("revision {requested} has been compacted; the oldest available one is {compacted}")]
    Compacted { requested: Revision, compacted: Revision },
    /// The revision is in the future.
    #[error("revision {requested} is in the future; the store is at {current}")]
    FutureRevision { requested: Revision, current: Revision },
    /// The lease never existed, was revoked or has expired.
    #[error("lease {0} not found")]
    LeaseNotFound(LeaseId),
    /// Key and value together exceed the backend's size limit.
    #[error("{key}: {size} bytes exceed the limit of {limit}")]
    TooLarge { key: Arc<str>, size: usize, limit: usize },
    /// The disk is full. Nothing was written; writes resume once space is available.
    #[error("no space left for the store's log")]
    NoSpace,
    /// The store has reached its size limit. Deletes are accepted; other writes are rejected until space is freed.
    /// The message is etcd's.
    #[error("etcdserver: mvcc: database space exceeded")]
    QuotaExceeded,
    /// The disk failed while making data durable. Writes are rejected until a restart has determined what is on it;
    /// reads continue.
    #[error("the store is read-only until restart: {reason}")]
    Poisoned { reason: Arc<str> },
    /// The backend cannot be reached or has no leader. The operation had no effect and may be retried.
    #[error("store unavailable: {reason}")]
    Unavailable { reason: Arc<str> },
    /// The connection broke after a write was sent: the write may or may not have been applied.
    #[error("the outcome of the write to {key} is unknown: {reason}")]
    OutcomeUnknown { key: Arc<str>, reason: Arc<str> },
    /// The backend rejected the request (authentication, quota, bad key).
    #[error("the store rejected the request: {reason}")]
    Refused { reason: Arc<str> },
    /// The value exists, but a layer around the store cannot decode it.
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
    pub(crate) fn corrupt(path: impl Into<PathBuf>, reason: impl Into<Arc<str>>) -> Self {
        Self::Corrupt { path: path.into(), reason: reason.into() }
    }

    /// Wraps an I/O error; for `map_err` on file operations.
    pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source: Arc::new(source) }
    }
}
