//! Task groups: every task of the process is spawned through one, so that shutdown can stop and await them all.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

/// Tasks that belong together. Clones share the group.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    tasks: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
}

/// Tasks that were still running when the grace was over; they have been cancelled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} tasks were still running when the grace was over")]
pub struct Undrained(pub usize);

impl TaskGroup {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A group of its own that is told to stop, and cancelled, with this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { tasks: TaskTracker::new(), stop: self.stop.child_token(), abort: self.abort.child_token() }
    }

    /// Runs `task` until it ends, or the group is cancelled after its grace. A task that should end early when
    /// the group stops awaits [`TaskGroup::stopping`].
    pub fn spawn<F>(&self, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(Box::pin(task))
    }

    /// One future type for all tasks: the runtime's code for a task is compiled once instead of for each caller.
    fn spawn_boxed(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            abort.run_until_cancelled_owned(task).await;
        })
    }

    /// Completes when the group has been told to stop.
    pub fn stopping(&self) -> WaitForCancellationFutureOwned {
        self.stop.clone().cancelled_owned()
    }

    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells the tasks to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Cancels whatever still runs, at its next suspension point.
    pub fn abort(&self) {
        self.stop.cancel();
        self.abort.cancel();
    }

    /// Stops the group and waits for its tasks; those that outlast `grace` are cancelled and counted.
    pub async fn drain(&self, grace: Duration) -> Result<(), Undrained> {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_ok() {
            return Ok(());
        }
        let left = self.tasks.len();
        self.abort.cancel();
        Err(Undrained(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn drain_waits_for_tasks_that_heed_the_stop() {
        let group = TaskGroup::new();
        let done = Arc::new(AtomicBool::new(false));
        let (inner, flag) = (group.clone(), Arc::clone(&done));
        group.spawn(async move {
            inner.stopping().await;
            flag.store(true, Ordering::SeqCst);
        });
        assert_eq!(group.drain(Duration::from_secs(5)).await, Ok(()));
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn drain_cancels_what_outlasts_the_grace() {
        let group = TaskGroup::new();
        let handle = group.spawn(std::future::pending());
        assert_eq!(group.drain(Duration::from_secs(5)).await, Err(Undrained(1)));
        handle.await.expect("cancelled in an orderly way");
    }

    #[tokio::test]
    async fn children_stop_with_their_parent_but_not_the_other_way_round() {
        let parent = TaskGroup::new();
        let child = parent.child();
        child.stop();
        assert!(!parent.is_stopping());
        let other = parent.child();
        parent.stop();
        assert!(other.is_stopping());
    }
}
