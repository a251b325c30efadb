//! A store that misbehaves on request: the way to provoke what no input should.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use store::{Layer, Outcome, Store, StoreError, Txn};
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
impl Layer for Troubled {
    fn below(&self) -> &dyn Store {
        &*self.inner
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
}
