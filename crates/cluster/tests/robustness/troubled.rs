//! A store that misbehaves on request: the way to provoke what no input should.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use store::{
    KeyValue, LeaseId, Outcome, RangeRequest, RangeResponse, Revision, Store, StoreError, Txn, WatchHandle,
    WatchSink,
};
use tokio::sync::Semaphore;

type Result<T> = std::result::Result<T, StoreError>;

/// Writes to keys with `panics` in their name panic; for those with `full` there is no space; those with `hangs`
/// wait until they are let go.
pub struct Troubled {
    inner: Arc<dyn Store>,
    gate: Semaphore,
    waiting: AtomicUsize,
}

impl Troubled {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, gate: Semaphore::new(0), waiting: AtomicUsize::new(0) }
    }

    /// How many writes hang, or have hung.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Nothing hangs any more.
    pub fn let_go(&self) {
        self.gate.close();
    }
}

#[async_trait]
impl Store for Troubled {
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        self.inner.get(key).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.inner.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        assert!(!txn.key.contains("panics"), "the store was told to");
        if txn.key.contains("full") {
            return Err(StoreError::NoSpace);
        }
        if txn.key.contains("hangs") {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            // The gate never has a place: it only closes.
            let _ = self.gate.acquire().await;
        }
        self.inner.txn(txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle> {
        self.inner.watch(prefix, after, sink).await
    }

    async fn barrier(&self) -> Result<Revision> {
        self.inner.barrier().await
    }

    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.inner.compact(revision).await
    }

    async fn compacted(&self) -> Result<Revision> {
        self.inner.compacted().await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId> {
        self.inner.grant_lease(ttl).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.inner.revoke_lease(lease).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<()> {
        self.inner.keep_alive(lease).await
    }

    async fn snapshot(&self, to: &Path) -> Result<Revision> {
        self.inner.snapshot(to).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
