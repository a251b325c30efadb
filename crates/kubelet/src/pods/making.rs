//! Calls that make something at the runtime. Whoever waits for one may go away, the call is finished all the same: what
//! it makes can then be seen, and ended.

use std::future::Future;
use std::sync::Arc;

use base::tasks::TaskGroup;
use tokio::sync::{Mutex, oneshot};
use tonic::Status;

use crate::engine::EngineError;

/// The calls of one pod, one at a time.
pub struct Making {
    alone: Arc<Mutex<()>>,
    tasks: TaskGroup,
}

impl Making {
    pub fn new(tasks: TaskGroup) -> Self {
        Self { alone: Arc::default(), tasks }
    }

    /// Runs a call to its end.
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
        outcome.await.unwrap_or_else(|_| Err(Status::unavailable("the kubelet is stopping").into()))
    }

    /// Waits for a call that nobody waits for any more.
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
    async fn what_was_given_up_is_waited_for() {
        let making = Making::new(TaskGroup::default());
        let (made, may_go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
        let (seen, gate) = (Arc::clone(&made), Arc::clone(&may_go_on));
        let mut call = Box::pin(making.run(async move {
            gate.notified().await;
            seen.store(true, Ordering::SeqCst);
            Ok(())
        }));
        assert!(matches!(futures_util::poll!(&mut call), Poll::Pending));
        drop(call);
        let mut settled = Box::pin(making.settled());
        assert!(matches!(futures_util::poll!(&mut settled), Poll::Pending));
        may_go_on.notify_one();
        settled.await;
        assert!(made.load(Ordering::SeqCst));
        let next = making.run(async { Ok(7) }).await;
        assert_eq!(next.ok(), Some(7));
    }
}
