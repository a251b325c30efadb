//! The store's contract: the types and the trait that every backend implements.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Result, StoreError};

/// Position in the store's one sequence of changes. A new store is at 1.
pub type Revision = u64;

/// A lease: keys put with it are deleted when it runs out or is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// One key with the value it had at `mod_revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Arc<str>,
    pub value: Bytes,
    /// Revision of the put that created the key.
    pub create_revision: Revision,
    /// Revision of the latest put.
    pub mod_revision: Revision,
    /// Number of puts since the key was created.
    pub version: u64,
}

/// Condition on the key under which a transaction is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key exists and its `mod_revision` equals this.
    Revision(Revision),
    /// No condition.
    Any,
}

impl Expect {
    /// Evaluates the condition on the key's current value.
    pub fn holds(self, current: Option<&KeyValue>) -> bool {
        match self {
            Self::Absent => current.is_none(),
            Self::Revision(revision) => current.is_some_and(|kv| kv.mod_revision == revision),
            Self::Any => true,
        }
    }
}

/// The change a transaction makes.
#[derive(Clone, Debug)]
pub enum Op {
    /// Sets the value; the key belongs to this lease from now on, or to none.
    Put {
        value: Bytes,
        lease: Option<LeaseId>,
    },
    Delete,
}

/// Compare-and-swap on one key.
#[derive(Clone, Debug)]
pub struct Txn {
    pub key: Arc<str>,
    pub expect: Expect,
    pub op: Op,
}

/// Result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change is durable. Deleting a missing key changes nothing and returns the store's current revision.
    Committed { revision: Revision, prev: Option<KeyValue> },
    /// The expectation did not hold; `current` is the key's value at `revision`.
    Conflict { current: Option<KeyValue>, revision: Revision },
}

/// Key range, limit and revision of a read.
#[derive(Clone, Debug, Default)]
pub struct RangeRequest {
    /// First key, inclusive.
    pub start: String,
    /// Last key, exclusive.
    pub end: String,
    /// Maximum number of keys to return; 0 for no limit.
    pub limit: usize,
    /// Revision to read at; `None` for the current one.
    pub revision: Option<Revision>,
}

/// Keys in byte order.
#[derive(Clone, Debug)]
pub struct RangeResponse {
    pub kvs: Vec<KeyValue>,
    /// True if the limit excluded keys.
    pub more: bool,
    /// Number of keys in `[start, end)`, regardless of the limit.
    pub count: u64,
    /// Store revision at the time of the read, also for a read at an older revision.
    pub revision: Revision,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Put { kv: KeyValue, prev: Option<KeyValue> },
    Delete { key: Arc<str>, revision: Revision, prev: Option<KeyValue> },
}

impl Event {
    pub fn key(&self) -> &Arc<str> {
        match self {
            Self::Put { kv, .. } => &kv.key,
            Self::Delete { key, .. } => key,
        }
    }

    pub fn revision(&self) -> Revision {
        match self {
            Self::Put { kv, .. } => kv.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }

    pub fn prev(&self) -> Option<&KeyValue> {
        match self {
            Self::Put { prev, .. } | Self::Delete { prev, .. } => prev.as_ref(),
        }
    }
}

/// Receiver of a watch. The embedded backend calls it on the commit path, after the data is durable and before the
/// writer's call returns. It must be quick, and must not start watches.
pub trait WatchSink: Send {
    /// Changes in revision order, never empty. All changes of one revision are delivered in one call.
    fn events(&mut self, events: Vec<Event>);
    /// Every change up to this revision has been delivered.
    fn progress(&mut self, revision: Revision);
    /// The watch has ended; no further calls follow.
    fn closed(&mut self, error: StoreError);
}

/// Keeps a watch alive; dropping it ends the watch (a call in progress still completes).
pub struct WatchHandle {
    cancel: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl WatchHandle {
    pub(crate) fn new(cancel: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { cancel: Some(Box::new(cancel)) }
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}

impl fmt::Debug for WatchHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchHandle")
    }
}

/// Health and size of a backend, for health checks and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// The failure that stopped all writes until a restart, with a remedy.
    pub failure: Option<String>,
    /// Bytes of all keys and values, if the backend counts them.
    pub size_bytes: Option<u64>,
    /// Size limit, if there is one.
    pub quota_bytes: Option<u64>,
    /// The size limit is reached: writes other than deletes are rejected.
    pub quota_exceeded: bool,
}

/// A store. Revisions never repeat and never go back, also across crashes.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The current value of the key, and the revision of the read.
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)>;

    /// Keys of a range, at the current or at a retained revision.
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse>;

    /// Compare-and-swap; the change is durable when the call returns.
    async fn txn(&self, txn: Txn) -> Result<Outcome>;

    /// Delivers every change of keys with this prefix and a revision above `after` to the sink, history first,
    /// without gap or duplicate.
    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle>;

    /// A revision R, not older than any write acknowledged before the call, such that the sinks of all established
    /// watches have received every event up to R (and progress up to at least R).
    async fn barrier(&self) -> Result<Revision>;

    /// Last committed revision that this process has seen, without any IO.
    fn revision(&self) -> Revision;

    /// The backend's state, without any IO.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }

    /// True if the stored form of the value is outdated (for example, encrypted with an old key), so that an update
    /// without changes should still be written.
    async fn outdated(&self, _key: &str) -> Result<bool> {
        Ok(false)
    }

    /// Drops history: revisions below this one can no longer be read. Compacting at or below an earlier compaction has
    /// no effect.
    async fn compact(&self, revision: Revision) -> Result<()>;

    /// Revisions below this cannot be read.
    async fn compacted(&self) -> Result<Revision>;

    /// Grants a lease that ends after `ttl` unless renewed. Leases survive restarts, with a fresh `ttl`.
    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId>;

    /// Revokes a lease and deletes its keys.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<()>;

    /// Renews the lease for its full `ttl`.
    async fn keep_alive(&self, lease: LeaseId) -> Result<()>;

    /// Writes the current state to a file while the store continues to serve; returns its revision.
    async fn snapshot(&self, to: &Path) -> Result<Revision>;

    /// Finishes queued requests, ends all watches and releases the backend.
    async fn close(&self);
}

/// The first key after all keys with this prefix: the `end` of a range over the prefix.
///
/// Keys are UTF-8, so this is the prefix with its last character replaced by the next one; an empty
/// prefix covers everything.
pub fn prefix_end(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            other => char::from_u32(other as u32 + 1),
        };
        if let Some(next) = next {
            end.push(next);
            return end;
        }
    }
    char::MAX.to_string().repeat(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_is_first_key_after_prefix() {
        for (prefix, end) in
            [("/pods/", "/pods0"), ("a", "b"), ("\u{d7ff}", "\u{e000}"), ("a\u{10ffff}", "b")]
        {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
            assert!(prefix_end(prefix).as_str() > prefix);
        }
        assert!(prefix_end("").as_str() > "\u{10ffff}\u{10ffff}zzz");
    }
}
