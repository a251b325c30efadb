//! Graceful shutdown of the node: the machine waits while pods end, the critical ones last.

mod inhibitor;
mod message;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;

use crate::pods::Workers;
use crate::shared::Shared;
use inhibitor::{BUS, Inhibitor};

/// From this priority on pods are the system's own.
const CRITICAL: i32 = 2_000_000_000;
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// How often it is looked whether pods have ended.
const LOOK: Duration = Duration::from_millis(200);

/// How long the machine may be kept from going down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// For all pods; none means that nothing is done.
    pub total: Duration,
    /// Of it, for critical pods.
    pub critical: Duration,
}

fn is_critical(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|priority| priority >= CRITICAL)
}

/// Waits for the word that the machine goes down, and ends the pods then.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>) {
    let grace = shared.config.upkeep.shutdown;
    if grace.total.is_zero() {
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
            end(&shared, &workers, grace).await;
            drop(inhibitor);
        }
        Ok((Err(error), _)) => tracing::warn!(%error, "the login manager is not heard any more"),
        Err(_) => {}
    }
}

/// Ends all pods: first those that are not critical, then the rest.
async fn end(shared: &Arc<Shared>, workers: &Arc<Workers>, grace: Grace) {
    tracing::info!(seconds = grace.total.as_secs(), "the machine goes down: pods end");
    workers.refuse_new();
    shared.shutting_down.store(true, std::sync::atomic::Ordering::Relaxed);
    shared.node_news.notify_one();
    let first = grace.total.saturating_sub(grace.critical);
    for (critical, time) in [(false, first), (true, grace.critical)] {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX).max(1);
        let mut left = BTreeSet::new();
        for pod in workers.pods().iter().filter(|pod| is_critical(pod) == critical) {
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
