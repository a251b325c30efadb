//! Delays the start of containers until the policies of their pod are enforced: the node registers a pod's addresses
//! here before the API has them.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use objects::core::v1 as core;
use parking_lot::Mutex;
use runtime::{Cache, Key};
use tokio::sync::{Notify, oneshot};

/// Time a pod waits for its rules before a warning is logged, or before it starts without them where that is allowed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Handling of a pod whose policies cannot be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The pod does not start.
    #[default]
    Wait,
    /// The pod starts after the wait, without any policy.
    Start,
}

/// Pods registered before the API has their addresses.
#[derive(Debug, Default)]
pub struct PodStartGate {
    on_failure: OnFailure,
    registrations: Mutex<Registrations>,
    pub(crate) any: Notify,
}

#[derive(Debug, Default)]
struct Registrations {
    pods: HashMap<Key, Pod>,
    /// Enforcement is not running.
    closed: bool,
}

#[derive(Debug)]
struct Pod {
    addresses: BTreeSet<IpAddr>,
    /// Callers that wait for the rules to be applied.
    waits: Option<oneshot::Sender<()>>,
    planned: bool,
}

impl PodStartGate {
    #[must_use]
    pub fn new(on_failure: OnFailure) -> Self {
        Self { on_failure, ..Self::default() }
    }

    /// Registers a pod's addresses, and waits until the policies that select it are in force for them. If they cannot
    /// be enforced, it returns only if pods may start without policies.
    pub async fn register(&self, namespace: &str, name: &str, addresses: &[IpAddr]) {
        let key = Key::new(namespace, name);
        let (waits, mut done) = oneshot::channel();
        let closed = {
            let mut registrations = self.registrations.lock();
            if !registrations.closed {
                let addresses = addresses.iter().copied().collect();
                registrations.pods.insert(key, Pod { addresses, waits: Some(waits), planned: false });
            }
            registrations.closed
        };
        self.any.notify_one();
        if !closed {
            loop {
                match tokio::time::timeout(PATIENCE, &mut done).await {
                    Ok(Ok(())) => return,
                    // Enforcement is not running and will not apply them.
                    Ok(Err(_)) => break,
                    Err(_) if self.on_failure == OnFailure::Start => break,
                    Err(_) => {
                        tracing::warn!(
                            namespace,
                            name,
                            "pod start is delayed until its network policies are enforced"
                        );
                    }
                }
            }
        }
        tracing::warn!(namespace, name, on_failure = ?self.on_failure, "failed to enforce network policies of pod");
        match self.on_failure {
            OnFailure::Start => {}
            OnFailure::Wait => std::future::pending().await,
        }
    }

    /// Suspends enforcement until [`Self::open`]. Pods that may start without policies do so; others keep waiting.
    pub(crate) fn close(&self) {
        if self.on_failure == OnFailure::Start {
            *self.registrations.lock() = Registrations { closed: true, ..Registrations::default() };
        }
    }

    /// Resumes enforcement.
    pub(crate) fn open(&self) {
        self.registrations.lock().closed = false;
        self.any.notify_one();
    }

    /// There are no policies: no pod has to wait.
    pub(crate) fn forget_all(&self) {
        for (_, mut pod) in self.registrations.lock().pods.drain() {
            let _ = pod.waits.take().map(|waits| waits.send(()));
        }
    }

    /// Pods to plan with other addresses than those of the API, or again with those of the API. Entries that the API
    /// has caught up with, and deleted pods, are dropped unless a waiter exists.
    pub(crate) fn plan(&self, pods: &Cache<core::Pod>) -> Vec<(Key, Option<BTreeSet<IpAddr>>)> {
        let mut registrations = self.registrations.lock();
        let mut plans = Vec::new();
        registrations.pods.retain(|key, early| match pods.get_key(key) {
            Some(pod) if early.addresses.is_subset(&crate::feed::addresses(&pod)) => {
                early.planned = true;
                plans.push((key.clone(), None));
                early.waits.is_some()
            }
            Some(_) => {
                early.planned = true;
                plans.push((key.clone(), Some(early.addresses.clone())));
                true
            }
            // The cache may not have it yet.
            None => early.waits.as_ref().is_some_and(|waits| !waits.is_closed()),
        });
        plans
    }

    /// The plan has been applied.
    pub(crate) fn made(&self) {
        for pod in self.registrations.lock().pods.values_mut().filter(|pod| pod.planned) {
            let _ = pod.waits.take().map(|waits| waits.send(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if a pod may start within an hour, after `change`.
    async fn starts(early: &PodStartGate, change: impl FnOnce(&PodStartGate)) -> bool {
        let address = [IpAddr::from([10, 0, 0, 1])];
        let registrations =
            tokio::time::timeout(Duration::from_secs(3600), early.register("ns", "pod", &address));
        let changed = async {
            tokio::task::yield_now().await;
            change(early);
        };
        tokio::join!(registrations, changed).0.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn pod_without_enforced_policies_does_not_start() {
        assert!(!starts(&PodStartGate::default(), |_| {}).await, "nothing answers");
        assert!(!starts(&PodStartGate::default(), PodStartGate::close).await, "the driver ends");
        let closed = PodStartGate::default();
        closed.close();
        assert!(!starts(&closed, |_| {}).await, "the driver has ended");
        assert!(
            starts(&closed, |early| {
                early.open();
                early.forget_all()
            })
            .await,
            "the driver is back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pod_starts_without_policies_or_where_that_is_allowed() {
        assert!(starts(&PodStartGate::default(), PodStartGate::forget_all).await, "there is no policy");
        assert!(starts(&PodStartGate::new(OnFailure::Start), |_| {}).await);
        assert!(starts(&PodStartGate::new(OnFailure::Start), PodStartGate::close).await);
    }
}
