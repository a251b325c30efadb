//! Task groups: every task of the process is spawned through one, so that shutdown can stop and await them all.
//!
//! A task that has to run as long as its group is spawned by [`TaskGroup::supervise`]: one that panics or returns
//! earlier is logged, counted and restarted with backoff, and [`Supervision::check`] fails while that does not help.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::metrics::{Metrics, MetricsError};

/// Delays before restarts of a task.
const RESTART: Backoff = Backoff::new(Duration::from_millis(100), LONGEST_PAUSE);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A task that ran this long counts as recovered: its backoff is reset.
const WORKED: Duration = Duration::from_secs(60);
/// Number of consecutive early ends after which a task counts as failing.
const FAILING_AFTER: u32 = 6;

/// Tasks that belong together. Clones share the group.
///
/// ```
/// use base::tasks::TaskGroup;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let tasks = TaskGroup::new();
/// let stopping = tasks.stopping();
/// tasks.spawn(async move { stopping.await });
/// // Stops the group and waits for its tasks.
/// tasks.drain(Duration::from_secs(5)).await.expect("all tasks have ended");
/// assert!(tasks.is_stopping());
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    tasks: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
    supervision: Supervision,
}

/// Restarts and panics of the supervised tasks of a group and its children. Clones share them.
#[derive(Clone, Debug)]
pub struct Supervision {
    restarts: Option<IntCounterVec>,
    panics: Option<IntCounterVec>,
    /// Tasks that end repeatedly, with the last reason.
    failing: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Default for Supervision {
    fn default() -> Self {
        // `None` only if a metric name is invalid.
        let counters = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["task"]).ok();
        Self {
            restarts: counters(
                "ferry_task_restarts_total",
                "Number of restarts of background tasks that panicked or returned.",
            ),
            panics: counters(
                "ferry_task_panics_total",
                "Number of panics in background tasks, including those of single reconciles.",
            ),
            failing: Arc::default(),
        }
    }
}

impl Supervision {
    /// Adds the counters to the metrics of the process.
    pub fn register(&self, metrics: &Metrics) -> Result<(), MetricsError> {
        for counters in [&self.restarts, &self.panics].into_iter().flatten() {
            metrics.add(counters.clone())?;
        }
        Ok(())
    }

    /// Counts a panic that the task itself has recovered from.
    pub fn count_panic(&self, task: &str) {
        if let Some(panics) = &self.panics {
            panics.with_label_values(&[task]).inc();
        }
    }

    /// Panics of a task so far.
    #[must_use]
    pub fn panics(&self, task: &str) -> u64 {
        self.panics.as_ref().map_or(0, |panics| panics.with_label_values(&[task]).get())
    }

    /// Restarts of a task so far.
    #[must_use]
    pub fn restarts(&self, task: &str) -> u64 {
        self.restarts.as_ref().map_or(0, |restarts| restarts.with_label_values(&[task]).get())
    }

    /// Fails while a task keeps ending despite restarts: a liveness check.
    pub fn check(&self) -> Result<(), String> {
        self.check_tasks(|_| true)
    }

    /// As [`Supervision::check`], for the tasks whose name `concerns` accepts.
    pub fn check_tasks(&self, concerns: impl Fn(&str) -> bool) -> Result<(), String> {
        match self.failing.lock().iter().find(|(task, _)| concerns(task)) {
            None => Ok(()),
            Some((task, reason)) => Err(format!("task {task} cannot be restarted: {reason}")),
        }
    }

    /// Records the unexpected end of a task.
    fn ended(&self, task: &str, ends: u32, reason: String) {
        if let Some(restarts) = &self.restarts {
            restarts.with_label_values(&[task]).inc();
        }
        if ends >= FAILING_AFTER {
            self.failing.lock().insert(task.to_owned(), reason);
        }
    }

    fn worked(&self, task: &str) {
        self.failing.lock().remove(task);
    }
}

/// Tasks of one run of a supervised task.
struct Scope {
    group: TaskGroup,
    tasks: TaskGroup,
}

impl Drop for Scope {
    fn drop(&mut self) {
        // A stopping group drains its tasks itself.
        if !self.group.is_stopping() {
            self.tasks.abort();
        }
    }
}

type Supervised = Pin<Box<dyn Future<Output = ControlFlow<()>> + Send>>;

/// The message of a panic.
#[must_use]
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Runs a task outside of any group: one that ends with its connection, or that must outlive all groups. Shutdown does
/// not wait for it.
#[expect(clippy::disallowed_methods, reason = "the only place that spawns outside of a group")]
pub fn spawn_detached<F>(task: F) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(task)
}

/// Runs `work` on a separate thread: it blocks for long, or changes properties of its thread.
#[expect(clippy::disallowed_methods, reason = "the only place that starts threads without a name")]
pub fn spawn_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(work)
}

/// Tasks that were still running at the end of the grace period; they have been cancelled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} tasks were still running after the grace period")]
pub struct Undrained(pub usize);

impl TaskGroup {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A child group, stopped and cancelled with this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            tasks: TaskTracker::new(),
            stop: self.stop.child_token(),
            abort: self.abort.child_token(),
            supervision: self.supervision.clone(),
        }
    }

    /// A separate group that is cancelled with this one, but stops alone.
    #[must_use]
    pub fn separate(&self) -> Self {
        Self { stop: CancellationToken::new(), ..self.child() }
    }

    /// The restarts and panics of this group's tasks, and of all groups it is a child of.
    #[must_use]
    pub fn supervision(&self) -> &Supervision {
        &self.supervision
    }

    /// A group that stops with this one or alone, whose tasks this one waits for when it drains.
    #[must_use]
    pub fn scope(&self) -> Self {
        Self { tasks: self.tasks.clone(), ..self.child() }
    }

    /// Runs the future that `start` returns until the group stops. A task that panics or returns earlier is logged,
    /// counted and restarted, after a delay that doubles while it keeps failing.
    pub fn supervise<F>(
        &self,
        name: impl Into<String>,
        mut start: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.supervise_while(name, move || {
            let task = start();
            async move {
                task.await;
                ControlFlow::Continue(())
            }
        })
    }

    /// As [`TaskGroup::supervise`], for a task that does not await [`TaskGroup::stopping`]: it is dropped when the group
    /// stops.
    pub fn supervise_until_stopped<F>(
        &self,
        name: impl Into<String>,
        mut start: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.supervise(name, move || {
            let (task, stop) = (start(), stop.clone());
            async move {
                stop.run_until_cancelled_owned(task).await;
            }
        })
    }

    /// As [`TaskGroup::supervise`], for a task that may finish: it is not restarted after [`ControlFlow::Break`].
    pub fn supervise_while<F>(
        &self,
        name: impl Into<String>,
        mut start: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ControlFlow<()>> + Send + 'static,
    {
        self.supervise_boxed(name.into(), Box::new(move || Box::pin(start())))
    }

    /// As [`TaskGroup::supervise_while`], for a task that spawns others: each start gets its own group, whose tasks
    /// are cancelled before the next start.
    pub fn supervise_scope<F>(
        &self,
        name: impl Into<String>,
        mut start: impl FnMut(TaskGroup) -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ControlFlow<()>> + Send + 'static,
    {
        let group = self.clone();
        self.supervise_while(name, move || {
            let scope = Scope { group: group.clone(), tasks: group.scope() };
            let task = start(scope.tasks.clone());
            async move {
                let _scope = scope;
                task.await
            }
        })
    }

    fn supervise_boxed(
        &self,
        name: String,
        mut start: Box<dyn FnMut() -> Supervised + Send>,
    ) -> JoinHandle<()> {
        let group = self.clone();
        self.spawn(async move {
            let supervision = group.supervision.clone();
            let (mut ends, mut restart) = (0u32, RESTART);
            loop {
                let begin = Instant::now();
                let (task, over) = (start(), Arc::new(AtomicBool::new(false)));
                let is_over = Arc::clone(&over);
                let mut task = group.spawn(async move {
                    if task.await.is_break() {
                        is_over.store(true, Ordering::Release);
                    }
                });
                let outcome = tokio::select! {
                    outcome = &mut task => outcome,
                    () = tokio::time::sleep(WORKED) => {
                        supervision.worked(&name);
                        task.await
                    }
                };
                if group.is_stopping() || over.load(Ordering::Acquire) {
                    return;
                }
                if begin.elapsed() >= WORKED {
                    ends = 0;
                    restart.reset();
                }
                let reason = match outcome.map_err(tokio::task::JoinError::try_into_panic) {
                    Err(Ok(panic)) => {
                        supervision.count_panic(&name);
                        format!("it panicked: {}", panic_message(&*panic))
                    }
                    Ok(()) | Err(Err(_)) => "it returned".to_owned(),
                };
                ends = ends.saturating_add(1);
                let pause = restart.next_delay();
                tracing::error!(task = name, reason, ends, ?pause, "background task exited, restarting");
                supervision.ended(&name, ends, reason);
                tokio::select! {
                    () = group.stopping() => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        })
    }

    /// Runs `task` until it ends, or the group is cancelled after its grace. A task that should end early when
    /// the group stops awaits [`TaskGroup::stopping`].
    pub fn spawn<F>(&self, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(Box::pin(task))
    }

    /// Runs `task` until it ends or the group stops.
    pub fn spawn_until_stopped<F>(&self, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.spawn(async move {
            stop.run_until_cancelled_owned(task).await;
        })
    }

    /// Awaits `task`; `None` if the group stops first.
    pub async fn until_stopped<F: Future>(&self, task: F) -> Option<F::Output> {
        self.stop.run_until_cancelled(task).await
    }

    /// Boxes tasks to one future type, so that the runtime's task code is compiled once instead of for each caller.
    fn spawn_boxed(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            abort.run_until_cancelled_owned(task).await;
        })
    }

    /// Completes when the group is stopping.
    pub fn stopping(&self) -> WaitForCancellationFutureOwned {
        self.stop.clone().cancelled_owned()
    }

    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Signals the tasks to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Cancels all running tasks at their next suspension point.
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

    #[tokio::test]
    async fn drain_waits_for_tasks_that_stop() {
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
    async fn drain_cancels_tasks_after_the_grace_period() {
        let group = TaskGroup::new();
        let handle = group.spawn(std::future::pending());
        assert_eq!(group.drain(Duration::from_secs(5)).await, Err(Undrained(1)));
        handle.await.expect("cancelled in an orderly way");
    }

    #[tokio::test(start_paused = true)]
    async fn supervised_task_that_panics_or_returns_is_restarted_and_counted() {
        let group = TaskGroup::new();
        let starts = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = Arc::clone(&starts);
        let child = group.child();
        child.supervise("loop", move || {
            let start = count.fetch_add(1, Ordering::SeqCst);
            async move {
                match start {
                    0 => panic!("a number of a user"),
                    1 => {}
                    _ => std::future::pending().await,
                }
            }
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
        let supervision = group.supervision();
        assert_eq!((supervision.restarts("loop"), supervision.panics("loop")), (2, 1));
        assert_eq!(supervision.check(), Ok(()));
        let metrics = Metrics::new(&crate::clock::Clock::system()).expect("a registry");
        supervision.register(&metrics).expect("registers");
        let text = String::from_utf8(metrics.encode().expect("encodes")).expect("text");
        assert!(text.contains("ferry_task_restarts_total{task=\"loop\"} 2"), "{text}");
        assert_eq!(child.drain(Duration::from_secs(1)).await, Err(Undrained(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn supervised_task_that_cannot_be_restarted_fails_the_check() {
        let group = TaskGroup::new();
        let healed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&healed);
        group.supervise("loop", move || {
            let healed = flag.load(Ordering::SeqCst);
            async move {
                if healed {
                    std::future::pending().await
                }
            }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        let expected = "task loop cannot be restarted: it returned".to_owned();
        assert_eq!(group.supervision().check(), Err(expected));
        healed.store(true, Ordering::SeqCst);
        tokio::time::sleep(LONGEST_PAUSE + WORKED * 2).await;
        assert_eq!(group.supervision().check(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_supervised_scope_are_cancelled_before_its_restart() {
        let group = TaskGroup::new();
        let running = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = Arc::clone(&running);
        struct Counted(Arc<std::sync::atomic::AtomicU32>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let mut starts = 0;
        group.supervise_scope("parent", move |scope| {
            starts += 1;
            let (first, count) = (starts == 1, Arc::clone(&count));
            async move {
                assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "a task of the start before");
                let counted = Counted(count);
                scope.spawn(async move {
                    let _counted = counted;
                    std::future::pending().await
                });
                tokio::task::yield_now().await;
                assert!(!first, "the first start fails");
                std::future::pending().await
            }
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(group.supervision().panics("parent"), 1);
        assert_eq!(running.load(Ordering::SeqCst), 1);
        assert_eq!(group.supervision().check(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn supervised_task_ends_with_its_group() {
        let group = TaskGroup::new();
        let inner = group.clone();
        group.supervise("loop", move || inner.stopping());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(group.drain(Duration::from_secs(5)).await, Ok(()));
        assert_eq!(group.supervision().restarts("loop"), 0);
    }

    #[tokio::test]
    async fn task_until_stopped_ends_with_its_group() {
        let group = TaskGroup::new();
        assert_eq!(group.until_stopped(async { 7 }).await, Some(7));
        let task = group.spawn_until_stopped(std::future::pending());
        group.stop();
        task.await.expect("it has ended");
        assert_eq!(group.until_stopped(std::future::pending::<()>()).await, None);
        let group = TaskGroup::new();
        group.supervise_until_stopped("loop", std::future::pending);
        tokio::task::yield_now().await;
        assert_eq!(group.drain(Duration::from_secs(5)).await, Ok(()));
        assert_eq!(group.supervision().restarts("loop"), 0);
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
