//! The task of one APIService.

use super::target::Target;
use base::tasks::TaskGroup;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The task of one APIService; dropping it aborts the task.
pub struct Worker {
    pub target: Target,
    changed: Arc<Notify>,
    tasks: TaskGroup,
}

impl Worker {
    /// Starts a worker. `pass` runs immediately, when the worker is woken, and after the pause that it returns. A
    /// worker that panics is logged and restarted with a new state; others are not affected.
    pub fn start<S, P>(target: Target, tasks: &TaskGroup, pass: P) -> Self
    where
        S: Default + Send + 'static,
        P: for<'a> Fn(&'a Target, &'a mut S) -> BoxFuture<'a, Duration> + Send + Sync + 'static,
    {
        let (changed, pass) = (Arc::new(Notify::new()), Arc::new(pass));
        let (own, woken, group) = (target.clone(), Arc::clone(&changed), tasks.scope());
        let tasks = group.clone();
        tasks.supervise(format!("apiservice-{}", target.name), move || {
            let (pass, own, woken, group) =
                (Arc::clone(&pass), own.clone(), Arc::clone(&woken), group.clone());
            async move {
                let mut state = S::default();
                loop {
                    let pause = pass(&own, &mut state).await;
                    tokio::select! {
                        () = group.stopping() => return,
                        () = woken.notified() => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        });
        Self { target, changed, tasks }
    }

    /// Triggers a reconciliation.
    pub fn wake(&self) {
        self.changed.notify_one();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn target(name: &str) -> Target {
        let object = json!({"metadata": {"name": name}, "spec": {
            "group": "example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "service": {"namespace": "n", "name": "s", "port": 443}}});
        Target::new(&object).expect("a target")
    }

    /// Waits until a counter exceeds a number.
    async fn beyond(count: &AtomicU32, number: u32) {
        let start = std::time::Instant::now();
        while count.load(Ordering::SeqCst) <= number {
            assert!(start.elapsed() < Duration::from_secs(30), "{} passes", count.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn worker_panic_is_restarted_without_affecting_others() {
        const PAUSE: Duration = Duration::from_millis(5);
        let group = TaskGroup::new();
        let (failing, other) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&failing);
        let first = Worker::start(target("v1.a"), &group, move |_, passes: &mut u32| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            *passes += 1;
            let passes = *passes;
            Box::pin(async move {
                assert!(number != 1, "a document of another server");
                assert!(number < 2 || passes == number - 1, "the state is new");
                PAUSE
            })
        });
        let count = Arc::clone(&other);
        let _second = Worker::start(target("v1.b"), &group, move |_, (): &mut ()| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { PAUSE })
        });
        beyond(&failing, 5).await;
        let before = other.load(Ordering::SeqCst);
        beyond(&other, before).await;
        let supervision = group.supervision();
        assert_eq!((supervision.panics("apiservice-v1.a"), supervision.panics("apiservice-v1.b")), (1, 0));
        drop(first);
        tokio::task::yield_now().await;
        let (ended, before) = (failing.load(Ordering::SeqCst), other.load(Ordering::SeqCst));
        beyond(&other, before + 5).await;
        assert_eq!(failing.load(Ordering::SeqCst), ended, "a worker ends with its APIService");
    }
}
