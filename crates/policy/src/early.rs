//! Pods whose addresses are known on their node before the API knows them: they are under their policies before their
//! containers start.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use objects::core::v1 as core;
use parking_lot::Mutex;
use runtime::{Cache, Key};
use tokio::sync::{Notify, oneshot};

/// How long a pod waits for its rules; after that it starts without them, since nobody knows when they would come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pods that are told before the API tells of their addresses.
#[derive(Debug, Default)]
pub struct Early {
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
    /// Tells of a pod's addresses, and waits until the policies that select it are in force on them.
    pub async fn tell(&self, namespace: &str, name: &str, addresses: &[IpAddr]) {
        let key = Key::new(namespace, name);
        let (waits, done) = oneshot::channel();
        {
            let mut told = self.told.lock();
            if told.closed {
                return;
            }
            let addresses = addresses.iter().copied().collect();
            told.pods.insert(key, Pod { addresses, waits: Some(waits), planned: false });
        }
        self.any.notify_one();
        if tokio::time::timeout(PATIENCE, done).await.is_err() {
            tracing::warn!(
                namespace,
                name,
                "a pod starts though its network policies are not known to be in force"
            );
        }
    }

    /// Nobody is to wait any more.
    pub(crate) fn close(&self) {
        *self.told.lock() = Told { closed: true, ..Told::default() };
    }

    /// Nobody is under a policy.
    pub(crate) fn forget_all(&self) {
        self.told.lock().pods.clear();
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
