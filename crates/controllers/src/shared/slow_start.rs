//! Slow start for batches of writes: one, then two, then four; stops after the first batch with a failure.

use std::future::Future;

use futures_util::future::join_all;

/// Calls `write` for `items` in growing batches. Returns the number of successes and the first error.
pub async fn slow_start<T, F, E>(items: Vec<T>, write: impl Fn(T) -> F) -> (usize, Option<E>)
where
    F: Future<Output = Result<(), E>>,
{
    let mut done = 0;
    let mut size = 1;
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let batch: Vec<_> = items.by_ref().take(size).map(&write).collect();
        let mut failure = None;
        for outcome in join_all(batch).await {
            match outcome {
                Ok(()) => done += 1,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if failure.is_some() {
            return (done, failure);
        }
        size *= 2;
    }
    (done, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn failing_batch_stops_slow_start() {
        let calls = AtomicUsize::new(0);
        let write = |item: usize| {
            calls.fetch_add(1, Ordering::Relaxed);
            async move { if item == 4 { Err("no") } else { Ok(()) } }
        };
        assert_eq!(slow_start((0..100).collect(), write).await, (6, Some("no")));
        assert_eq!(calls.load(Ordering::Relaxed), 7);
        assert_eq!(slow_start(Vec::<usize>::new(), write).await, (0, None));
    }
}
