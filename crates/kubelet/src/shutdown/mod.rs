//! Graceful node shutdown: delays shutdown while pods terminate, critical ones last.

mod inhibitor;
mod message;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use objects::core::v1::Pod;

use crate::pods::Workers;
use crate::shared::Shared;
use inhibitor::{BUS, Inhibitor};

/// Lowest priority of system-critical pods.
const CRITICAL: i32 = 2_000_000_000;
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Polling interval for pod termination.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Shutdown grace periods by priority: each applies to pods from its priority up to the next. Sorted; an empty list
/// disables graceful shutdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grace(Vec<(i32, Duration)>);

impl Grace {
    /// Total grace period, and the part reserved for critical pods.
    #[must_use]
    pub fn new(total: Duration, critical: Duration) -> Self {
        if total.is_zero() {
            return Self::default();
        }
        Self(vec![(0, total.saturating_sub(critical)), (CRITICAL, critical)])
    }

    /// Grace periods by priority.
    #[must_use]
    pub fn by_priority(mut steps: Vec<(i32, Duration)>) -> Self {
        steps.sort_unstable();
        Self(steps)
    }

    fn total(&self) -> Duration {
        self.0.iter().map(|step| step.1).sum()
    }

    /// Index of the period for a pod of this priority; lower ones use the first.
    fn step(&self, priority: i32) -> usize {
        self.0.iter().rposition(|step| step.0 <= priority).unwrap_or(0)
    }
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Waits for the shutdown signal, then terminates the pods.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>) {
    let grace = shared.config.housekeeping.shutdown.clone();
    if grace.total().is_zero() {
        return;
    }
    let taken = tokio::task::spawn_blocking(|| Inhibitor::take(Path::new(BUS))).await;
    let mut inhibitor = match taken {
        Ok(Ok(inhibitor)) => inhibitor,
        Ok(Err(error)) => {
            return tracing::warn!(%error, "graceful node shutdown is unavailable");
        }
        Err(_) => return,
    };
    let Ok(handle) = inhibitor.handle() else { return };
    let waiting = tokio::task::spawn_blocking(move || (inhibitor.wait(), inhibitor));
    let signal = tokio::select! {
        signal = waiting => signal,
        () = shared.tasks.stopping() => {
            let _ = handle.shutdown(std::net::Shutdown::Both);
            return;
        }
    };
    match signal {
        Ok((Ok(()), inhibitor)) => {
            end(&shared, &workers, &grace).await;
            drop(inhibitor);
        }
        Ok((Err(error), _)) => tracing::warn!(%error, "lost D-Bus connection to systemd-logind"),
        Err(_) => {}
    }
}

/// Terminates all pods in order of priority, lowest first.
async fn end(shared: &Arc<Shared>, workers: &Arc<Workers>, grace: &Grace) {
    tracing::info!(seconds = grace.total().as_secs(), "node is shutting down, terminating pods");
    shared.metrics.node_start.shutdown_begins(shared.clock.now());
    workers.reject_new();
    shared.shutting_down.store(true, std::sync::atomic::Ordering::Relaxed);
    shared.node_news.notify_one();
    for (step, &(_, time)) in grace.0.iter().enumerate() {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX).max(1);
        let mut left = BTreeSet::new();
        for pod in workers.pods().iter().filter(|pod| grace.step(priority(pod)) == step) {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
            workers.evict(&uid, REASON, MESSAGE.to_owned(), Some(own.min(seconds)));
            left.insert(uid);
        }
        let begun = Instant::now();
        while !left.is_empty() && begun.elapsed() < time {
            tokio::time::sleep(CHECK_INTERVAL).await;
            for uid in left.clone() {
                if shared.engine.observe(&uid).await.is_ok_and(|observed| observed.is_quiet()) {
                    left.remove(&uid);
                }
            }
        }
    }
    shared.metrics.node_start.shutdown_ends(shared.clock.now());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_terminates_lowest_priority_first() {
        let seconds = Duration::from_secs;
        assert_eq!(Grace::new(seconds(0), seconds(0)), Grace::default());
        let usual = Grace::new(seconds(30), seconds(10));
        assert_eq!(usual.total(), seconds(30));
        assert_eq!((usual.step(-5), usual.step(1000), usual.step(CRITICAL)), (0, 0, 1));
        let own = Grace::by_priority(vec![(1000, seconds(20)), (0, seconds(5)), (CRITICAL, seconds(3))]);
        assert_eq!(own.total(), seconds(28));
        let steps: Vec<usize> = [-1, 0, 999, 1000, CRITICAL + 1].iter().map(|p| own.step(*p)).collect();
        assert_eq!(steps, [0, 0, 0, 1, 2]);
    }
}
