//! Runs CRI create calls to completion even if the caller is cancelled, so that their results are observed and
//! cleaned up.

use std::future::Future;
use std::sync::Arc;

use base::tasks::TaskGroup;
use tokio::sync::{Mutex, oneshot};
use tonic::Status;

use crate::engine::EngineError;

/// Create calls of one pod, one at a time.
pub struct CreateCalls {
    alone: Arc<Mutex<()>>,
    tasks: TaskGroup,
}

impl CreateCalls {
    pub fn new(tasks: TaskGroup) -> Self {
        Self { alone: Arc::default(), tasks }
    }

    /// Runs a call to completion.
    pub async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<T, EngineError> {
        let alone = Arc::clone(&self.alone).lock_owned().await;
        let (done, outcome) = oneshot::channel();
        let call = Box::pin(call);
        self.tasks.spawn(async move {
            let outcome = call.await;
            drop(alone);
            let _ = done.send(outcome);
        });
        outcome.await.unwrap_or_else(|_| Err(Status::unavailable("kubelet is stopping").into()))
    }

    /// Waits for a call whose caller was cancelled.
    pub async fn settled(&self) {
        drop(self.alone.lock().await);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn cancelled_call_runs_to_completion() {
        let create_calls = CreateCalls::new(TaskGroup::default());
        let (made, may_go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
        let (seen, gate) = (Arc::clone(&made), Arc::clone(&may_go_on));
        let mut call = Box::pin(create_calls.run(async move {
            gate.notified().await;
            seen.store(true, Ordering::SeqCst);
            Ok(())
        }));
        assert!(matches!(futures_util::poll!(&mut call), Poll::Pending));
        drop(call);
        let mut settled = Box::pin(create_calls.settled());
        assert!(matches!(futures_util::poll!(&mut settled), Poll::Pending));
        may_go_on.notify_one();
        settled.await;
        assert!(made.load(Ordering::SeqCst));
        let next = create_calls.run(async { Ok(7) }).await;
        assert_eq!(next.ok(), Some(7));
    }
}
