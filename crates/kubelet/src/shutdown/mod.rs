//! Graceful shutdown of the node: the machine waits while pods end, the critical ones last.

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

/// From this priority on pods are the system's own.
const CRITICAL: i32 = 2_000_000_000;
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// How often it is looked whether pods have ended.
const LOOK: Duration = Duration::from_millis(200);

/// How long the machine may be kept from going down: pods from a priority on, up to that of the next, have this long. In
/// the order of priorities; none means that nothing is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grace(Vec<(i32, Duration)>);

impl Grace {
    /// For all pods, and how much of that is for critical ones.
    #[must_use]
    pub fn new(total: Duration, critical: Duration) -> Self {
        if total.is_zero() {
            return Self::default();
        }
        Self(vec![(0, total.saturating_sub(critical)), (CRITICAL, critical)])
    }

    /// By priority.
    #[must_use]
    pub fn by_priority(mut steps: Vec<(i32, Duration)>) -> Self {
        steps.sort_unstable();
        Self(steps)
    }

    fn total(&self) -> Duration {
        self.0.iter().map(|step| step.1).sum()
    }

    /// The step that a pod of this priority belongs to; those below all belong to the first.
    fn step(&self, priority: i32) -> usize {
        self.0.iter().rposition(|step| step.0 <= priority).unwrap_or(0)
    }
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Waits for the word that the machine goes down, and ends the pods then.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>) {
    let grace = shared.config.upkeep.shutdown.clone();
    if grace.total().is_zero() {
        return;
    }
    let taken = tokio::task::spawn_blocking(|| Inhibitor::take(Path::new(BUS))).await;
    let mut inhibitor = match taken {
        Ok(Ok(inhibitor)) => inhibitor,
        Ok(Err(error)) => {
            return tracing::warn!(%error, "the machine will not wait for pods when it goes down");
        }
        Err(_) => return,
    };
    let Ok(handle) = inhibitor.handle() else { return };
    let waiting = tokio::task::spawn_blocking(move || (inhibitor.wait(), inhibitor));
    let told = tokio::select! {
        told = waiting => told,
        () = shared.tasks.stopping() => {
            let _ = handle.shutdown(std::net::Shutdown::Both);
            return;
        }
    };
    match told {
        Ok((Ok(()), inhibitor)) => {
            end(&shared, &workers, &grace).await;
            drop(inhibitor);
        }
        Ok((Err(error), _)) => tracing::warn!(%error, "the login manager is not heard any more"),
        Err(_) => {}
    }
}

/// Ends all pods, step by step: the least important first.
async fn end(shared: &Arc<Shared>, workers: &Arc<Workers>, grace: &Grace) {
    tracing::info!(seconds = grace.total().as_secs(), "the machine goes down: pods end");
    workers.refuse_new();
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
            tokio::time::sleep(LOOK).await;
            for uid in left.clone() {
                if shared.engine.observe(&uid).await.is_ok_and(|observed| observed.is_quiet()) {
                    left.remove(&uid);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_end_first() {
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
