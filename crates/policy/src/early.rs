//! Pods whose addresses are known on their node before the API knows them: they are under their policies before their
//! containers start.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use objects::core::v1 as core;
use parking_lot::Mutex;
use runtime::{Cache, Key};
use tokio::sync::{Notify, oneshot};

/// Time a pod waits for its rules before a warning is logged, or before it starts without them where that is allowed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Handling of a pod whose policies are not in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It does not start.
    #[default]
    Wait,
    /// The pod starts after the wait, without any policy.
    Start,
}

/// Pods that are told before the API tells of their addresses.
#[derive(Debug, Default)]
pub struct Early {
    on_failure: OnFailure,
    told: Mutex<Told>,
    pub(crate) any: Notify,
}

#[derive(Debug, Default)]
struct Told {
    pods: HashMap<Key, Pod>,
    /// Nobody enforces anything.
    closed: bool,
}

#[derive(Debug)]
struct Pod {
    addresses: BTreeSet<IpAddr>,
    /// Who waits, until the rules are in force.
    waits: Option<oneshot::Sender<()>>,
    planned: bool,
}

impl Early {
    #[must_use]
    pub fn new(on_failure: OnFailure) -> Self {
        Self { on_failure, ..Self::default() }
    }

    /// Tells of a pod's addresses, and waits until the policies that select it are in force on them. Where they cannot
    /// be, it returns only if pods may start without.
    pub async fn tell(&self, namespace: &str, name: &str, addresses: &[IpAddr]) {
        let key = Key::new(namespace, name);
        let (waits, mut done) = oneshot::channel();
        let closed = {
            let mut told = self.told.lock();
            if !told.closed {
                let addresses = addresses.iter().copied().collect();
                told.pods.insert(key, Pod { addresses, waits: Some(waits), planned: false });
            }
            told.closed
        };
        self.any.notify_one();
        if !closed {
            loop {
                match tokio::time::timeout(PATIENCE, &mut done).await {
                    Ok(Ok(())) => return,
                    // Nothing will put them in force.
                    Ok(Err(_)) => break,
                    Err(_) if self.on_failure == OnFailure::Start => break,
                    Err(_) => {
                        tracing::warn!(namespace, name, "pod waits for its network policies to be in force");
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

    /// Nothing is enforced until [`Self::open`]. Pods that may start without their policies do so; others keep waiting.
    pub(crate) fn close(&self) {
        if self.on_failure == OnFailure::Start {
            *self.told.lock() = Told { closed: true, ..Told::default() };
        }
    }

    /// Policies are enforced again.
    pub(crate) fn open(&self) {
        self.told.lock().closed = false;
        self.any.notify_one();
    }

    /// There are no policies: nobody has to wait for any.
    pub(crate) fn forget_all(&self) {
        for (_, mut pod) in self.told.lock().pods.drain() {
            let _ = pod.waits.take().map(|waits| waits.send(()));
        }
    }

    /// The pods that are to be planned with other addresses than the API tells, or as the API tells again. What the API
    /// knows by now, and pods that went, are forgotten unless somebody waits for them.
    pub(crate) fn plan(&self, pods: &Cache<core::Pod>) -> Vec<(Key, Option<BTreeSet<IpAddr>>)> {
        let mut told = self.told.lock();
        let mut plans = Vec::new();
        told.pods.retain(|key, early| match pods.get_key(key) {
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
            // It may not be known here yet.
            None => early.waits.as_ref().is_some_and(|waits| !waits.is_closed()),
        });
        plans
    }

    /// What was planned is in force.
    pub(crate) fn made(&self) {
        for pod in self.told.lock().pods.values_mut().filter(|pod| pod.planned) {
            let _ = pod.waits.take().map(|waits| waits.send(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a pod may go on within an hour, after `change`.
    async fn starts(early: &Early, change: impl FnOnce(&Early)) -> bool {
        let address = [IpAddr::from([10, 0, 0, 1])];
        let told = tokio::time::timeout(Duration::from_secs(3600), early.tell("ns", "pod", &address));
        let changed = async {
            tokio::task::yield_now().await;
            change(early);
        };
        tokio::join!(told, changed).0.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn pod_without_enforced_policies_does_not_start() {
        assert!(!starts(&Early::default(), |_| {}).await, "nothing answers");
        assert!(!starts(&Early::default(), Early::close).await, "the driver ends");
        let closed = Early::default();
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
        assert!(starts(&Early::default(), Early::forget_all).await, "there is no policy");
        assert!(starts(&Early::new(OnFailure::Start), |_| {}).await);
        assert!(starts(&Early::new(OnFailure::Start), Early::close).await);
    }
}
