//! Keeps long computations off the threads that accept connections and serve other requests.
//!
//! Such a request is polled on a thread of its own, and only a limited number compute at a time, so that processors
//! stay available for all other requests. [`Offload::run`] detects most of them by their request; a handler that
//! detects work later, such as a small patch of a large object, awaits [`heavy`] first.

use crate::context::Context;
use crate::serve::RequestBody;
use http_body::Body;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Bodies and objects up to this size are decoded, merged and validated in less time than a thread handover costs.
pub const LARGE: usize = 64 << 10;
/// Larger selectors may take long to match against every object of a list.
const LARGE_QUERY: usize = 8 << 10;
/// Groups whose objects hold expressions and schemas, which are compiled on write.
const COMPILED: [&str; 3] = ["admissionregistration.k8s.io", "apiextensions.k8s.io", "resource.k8s.io"];

/// Reports whether handling the request may take long, judged by its group, query and body size.
pub fn is_heavy(context: &Context, body: &RequestBody) -> bool {
    if context.uri.query().is_some_and(|query| query.len() > LARGE_QUERY) {
        return true;
    }
    if body.is_end_stream() {
        return false;
    }
    let large = body.size_hint().upper().is_none_or(|most| most > LARGE as u64);
    large || is_compiled(context)
}

/// Reports whether the request body is compiled, which takes more memory than decoding it.
pub fn is_compiled(context: &Context) -> bool {
    COMPILED.contains(&&*context.info.group)
}

/// Mode in which the current thread polls a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Not run by [`Offload::run`].
    Outside,
    /// On a thread shared with other requests.
    Inline,
    /// On a shared thread, and the request has requested a thread of its own.
    Requested,
    Heavy,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Outside) };
}

/// Restores the mode of the thread, also after a panic.
struct Polled {
    before: Mode,
}

impl Polled {
    fn begin(mode: Mode) -> Self {
        Self { before: MODE.replace(mode) }
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        MODE.set(self.before);
    }
}

/// Returns once the request runs on a thread of its own, where it may compute for long, and stays there.
pub async fn heavy() {
    poll_fn(|_| match MODE.get() {
        Mode::Outside | Mode::Heavy => Poll::Ready(()),
        // `Offload::run` polls it again immediately.
        Mode::Inline | Mode::Requested => {
            MODE.set(Mode::Requested);
            Poll::Pending
        }
    })
    .await;
}

/// Reports whether the request has a thread of its own.
pub fn is_heavy_now() -> bool {
    MODE.get() == Mode::Heavy
}

/// Requests a dedicated thread before processing an object of this size.
pub async fn heavy_if_large(bytes: usize) {
    if bytes > LARGE {
        heavy().await;
    }
}

/// Runs `work` on this many bytes without blocking the other tasks of the thread.
pub fn blocking<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    match bytes > LARGE && MODE.get() != Mode::Heavy && can_hand_over() {
        true => tokio::task::block_in_place(work),
        false => work(),
    }
}

/// A single-threaded runtime has no other worker for its tasks.
fn can_hand_over() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// Processors for heavy requests. Requests detected late as heavy have their own limit, so they do not wait for those
/// with large bodies.
pub struct Offload {
    processors: Semaphore,
    late: Semaphore,
}

impl Default for Offload {
    /// Half of the processors each, at least one.
    fn default() -> Self {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::of((all / 2).max(1))
    }
}

impl Offload {
    fn of(processors: usize) -> Self {
        Self { processors: Semaphore::new(processors), late: Semaphore::new(processors) }
    }

    /// Runs `work`. While it is heavy, each poll has a thread of its own; the other tasks move to another worker.
    pub async fn run<F: Future>(&self, work: F, is_heavy: bool) -> F::Output {
        let mut work = pin!(work);
        let processors = if is_heavy { &self.processors } else { &self.late };
        let mut is_heavy = is_heavy;
        if !can_hand_over() {
            return work.await;
        }
        loop {
            let was_heavy = is_heavy;
            let outcome = if is_heavy {
                // The permit is released while the work is pending. The semaphore is never closed.
                let _processor = processors.acquire().await;
                poll_fn(|cx| {
                    Poll::Ready(tokio::task::block_in_place(|| {
                        let _polled = Polled::begin(Mode::Heavy);
                        work.as_mut().poll(cx)
                    }))
                })
                .await
            } else {
                poll_fn(|cx| {
                    let _polled = Polled::begin(Mode::Inline);
                    let outcome = work.as_mut().poll(cx);
                    is_heavy = MODE.get() == Mode::Requested;
                    Poll::Ready(outcome)
                })
                .await
            };
            match outcome {
                Poll::Ready(output) => return output,
                Poll::Pending if is_heavy && !was_heavy => {}
                Poll::Pending => woken().await,
            }
        }
    }
}

/// Waits until the task is polled again: the future it polled last holds its waker.
async fn woken() {
    let mut is_first = true;
    poll_fn(|_| match std::mem::take(&mut is_first) {
        true => Poll::Pending,
        false => Poll::Ready(()),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    const WORK: Duration = Duration::from_secs(1);

    /// Longest pause of a task that runs beside a computation.
    async fn longest_pause(work: impl Future<Output = ()> + Send + 'static, is_heavy: bool) -> Duration {
        let begin = Instant::now();
        let working = tokio::spawn(async move { Offload::default().run(work, is_heavy).await });
        let beside = tokio::spawn(async move {
            let (mut last, mut longest) = (begin, Duration::ZERO);
            while begin.elapsed() < WORK {
                tokio::task::yield_now().await;
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest.max(last.elapsed())
        });
        working.await.expect("works");
        beside.await.expect("goes on")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn heavy_work_does_not_pause_tasks_of_its_thread() {
        let pause = longest_pause(async { std::thread::sleep(WORK) }, true).await;
        assert!(pause < WORK / 2, "another task waited {pause:?}");
        let detected_late = async {
            tokio::task::yield_now().await;
            heavy().await;
            std::thread::sleep(WORK);
        };
        let pause = longest_pause(detected_late, false).await;
        assert!(pause < WORK / 2, "another task waited {pause:?} for work detected late");
        let pause = longest_pause(async { std::thread::sleep(WORK) }, false).await;
        assert!(pause >= WORK / 2, "without a thread of its own it would have waited longer than {pause:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn heavy_work_uses_a_bounded_number_of_processors() {
        let offload = Arc::new(Offload::of(2));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (offload, now, most) = (offload.clone(), now.clone(), most.clone());
                tokio::spawn(async move {
                    let work = async {
                        for _ in 0..3 {
                            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_millis(10));
                            now.fetch_sub(1, Ordering::SeqCst);
                            // Yields the processor.
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    };
                    offload.run(work, true).await;
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("works");
        }
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn mode_after_panic_is_restored() {
        let offload = Offload::default();
        for is_heavy in [true, false] {
            let work = std::panic::AssertUnwindSafe(offload.run(async { panic!("test") }, is_heavy));
            assert!(futures_util::FutureExt::catch_unwind(work).await.is_err());
            assert!(MODE.get() == Mode::Outside);
        }
    }

    #[tokio::test]
    async fn heavy_work_on_a_single_thread_runs_in_place() {
        let work = async {
            heavy().await;
            1
        };
        assert_eq!(Offload::default().run(work, true).await, 1);
        heavy().await;
    }

    #[test]
    fn requests_are_heavy_by_body_query_and_group() {
        let long = format!("/api/v1/pods?labelSelector={}", "a".repeat(LARGE_QUERY));
        let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
        for (path, bytes, heavy) in [
            ("/api/v1/namespaces/n/pods", 0, false),
            ("/api/v1/namespaces/n/pods", 1000, false),
            ("/api/v1/namespaces/n/pods", 1 << 20, true),
            (policies, 0, false),
            (policies, 1000, true),
            (long.as_str(), 0, true),
        ] {
            let (parts, ()) = http::Request::get(path).body(()).expect("a request").into_parts();
            let body = RequestBody::from(vec![b' '; bytes]);
            assert_eq!(is_heavy(&Context::of_test(parts), &body), heavy, "{bytes} bytes to {path:.60}");
        }
    }
}
