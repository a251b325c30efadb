//! Keeps requests that may compute for long off the threads that accept connections and serve other requests.

use crate::context::Context;
use crate::serve::RequestBody;
use http_body::Body;
use std::future::Future;
use std::pin::pin;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Bodies up to this size are decoded, merged and validated in less time than handing over a thread is worth.
const LARGE_BODY: u64 = 64 << 10;
/// Selectors beyond this size may take long to match with every object of a list.
const LARGE_QUERY: usize = 8 << 10;
/// Groups whose objects hold expressions and schemas, which are compiled when they are written.
const COMPILED: [&str; 3] = ["admissionregistration.k8s.io", "apiextensions.k8s.io", "resource.k8s.io"];

/// Reports whether handling the request may take long, judged by what it sends.
pub fn is_heavy(context: &Context, body: &RequestBody) -> bool {
    if context.uri.query().is_some_and(|query| query.len() > LARGE_QUERY) {
        return true;
    }
    if body.is_end_stream() {
        return false;
    }
    let large = body.size_hint().upper().is_none_or(|most| most > LARGE_BODY);
    large || COMPILED.contains(&&*context.info.group)
}

/// Runs `work`. Heavy work has a thread of its own each time it is polled: the other tasks of the thread move on.
pub async fn offloaded<F: Future>(work: F, is_heavy: bool) -> F::Output {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| match is_heavy && can_hand_over() {
        true => tokio::task::block_in_place(|| work.as_mut().poll(cx)),
        false => work.as_mut().poll(cx),
    })
    .await
}

/// A runtime with one thread has no other worker for its tasks.
fn can_hand_over() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const WORK: Duration = Duration::from_secs(1);

    /// Longest pause of a task beside work that computes.
    async fn longest_pause(is_heavy: bool) -> Duration {
        let begin = Instant::now();
        let working = tokio::spawn(offloaded(async { std::thread::sleep(WORK) }, is_heavy));
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
        let pause = longest_pause(true).await;
        assert!(pause < WORK / 2, "another task waited {pause:?}");
        let pause = longest_pause(false).await;
        assert!(pause >= WORK / 2, "without a thread of its own it would have waited longer than {pause:?}");
    }

    #[tokio::test]
    async fn heavy_work_on_a_single_thread_runs_in_place() {
        assert_eq!(offloaded(async { 1 }, true).await, 1);
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
