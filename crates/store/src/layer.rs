//! Stores that wrap another store and override some of its operations.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    KeyValue, LeaseId, Outcome, RangeRequest, RangeResponse, Result, Revision, Store, StoreHealth, Txn,
    WatchHandle, WatchSink,
};

/// A wrapper around a store. Every method defaults to the inner store's; a type that implements this is a [`Store`].
#[async_trait]
pub trait Layer: Send + Sync + 'static {
    fn below(&self) -> &dyn Store;

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        self.below().get(key).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.below().range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        self.below().txn(txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle> {
        self.below().watch(prefix, after, sink).await
    }

    async fn outdated(&self, key: &str) -> Result<bool> {
        self.below().outdated(key).await
    }
}

#[async_trait]
impl<L: Layer> Store for L {
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        Layer::get(self, key).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        Layer::range(self, request).await
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        Layer::txn(self, txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle> {
        Layer::watch(self, prefix, after, sink).await
    }

    async fn outdated(&self, key: &str) -> Result<bool> {
        Layer::outdated(self, key).await
    }

    async fn barrier(&self) -> Result<Revision> {
        self.below().barrier().await
    }

    fn revision(&self) -> Revision {
        self.below().revision()
    }

    fn health(&self) -> StoreHealth {
        self.below().health()
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.below().compact(revision).await
    }

    async fn compacted(&self) -> Result<Revision> {
        self.below().compacted().await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId> {
        self.below().grant_lease(ttl).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.below().revoke_lease(lease).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<()> {
        self.below().keep_alive(lease).await
    }

    async fn snapshot(&self, to: &Path) -> Result<Revision> {
        self.below().snapshot(to).await
    }

    async fn close(&self) {
        self.below().close().await;
    }
}
