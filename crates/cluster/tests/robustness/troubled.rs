//! A store that fails on request, to provoke errors that no input causes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use store::{Layer, Outcome, Store, StoreError, Txn};
use tokio::sync::Semaphore;

type Result<T> = std::result::Result<T, StoreError>;

/// Writes to keys that contain `panics` panic; those with `full` return NoSpace; those with `hangs` wait for
/// [`Self::release`].
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    gate: Semaphore,
    waiting: AtomicUsize,
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, gate: Semaphore::new(0), waiting: AtomicUsize::new(0) }
    }

    /// Number of writes that hang or have hung.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Releases all hanging writes.
    pub fn release(&self) {
        self.gate.close();
    }
}

#[async_trait]
impl Layer for FaultyStore {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        assert!(!txn.key.contains("panics"), "injected panic");
        if txn.key.contains("full") {
            return Err(StoreError::NoSpace);
        }
        if txn.key.contains("hangs") {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            // The semaphore never has a permit: it is only closed.
            let _ = self.gate.acquire().await;
        }
        self.inner.txn(txn).await
    }
}
