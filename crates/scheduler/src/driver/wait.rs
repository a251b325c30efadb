//! Waits that precede a binding: for volumes, and for the binding conditions of devices. They can take minutes, so they
//! hold no permit of the bindings, and end with their pod.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits the concurrent bindings.
pub struct BindingPermit {
    permits: Arc<Semaphore>,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Reason why a wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    TimedOut,
    PodDeleted,
}

impl BindingPermit {
    /// Waits for a permit; `None` if there are no more.
    pub async fn acquire(permits: &Arc<Semaphore>) -> Option<Self> {
        let held = Arc::clone(permits).acquire_owned().await.ok()?;
        Some(Self { permits: Arc::clone(permits), held: Mutex::new(Some(held)) })
    }

    /// Awaits `work` without the permit, so that other pods are bound meanwhile. `deleted` completes when the pod is gone.
    pub async fn wait<T>(
        &self,
        work: impl Future<Output = T>,
        limit: Duration,
        deleted: impl Future<Output = ()>,
    ) -> Result<T, WaitEnd> {
        drop(self.held.lock().take());
        let outcome = tokio::select! {
            biased;
            output = work => Ok(output),
            () = deleted => Err(WaitEnd::PodDeleted),
            () = tokio::time::sleep(limit) => Err(WaitEnd::TimedOut),
        };
        let again = Arc::clone(&self.permits).acquire_owned().await.ok();
        *self.held.lock() = again;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn waiting_pod_holds_no_permit() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = BindingPermit::acquire(&permits).await.expect("a permit");
        assert_eq!(permits.available_permits(), 0);
        let seen = permit.wait(async { permits.available_permits() }, LONG, pending()).await;
        assert_eq!((seen, permits.available_permits()), (Ok(1), 0));
        drop(permit);
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn wait_ends_with_its_pod_or_limit() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = BindingPermit::acquire(&permits).await.expect("a permit");
        assert_eq!(permit.wait(ready(1), LONG, ready(())).await, Ok(1));
        assert_eq!(permit.wait(pending::<()>(), LONG, ready(())).await, Err(WaitEnd::PodDeleted));
        let short = Duration::from_millis(1);
        assert_eq!(permit.wait(pending::<()>(), short, pending()).await, Err(WaitEnd::TimedOut));
        assert_eq!(permits.available_permits(), 0);
    }
}
