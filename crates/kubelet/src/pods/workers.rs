//! All pod workers of a kubelet: started, updated and removed with their pods.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use objects::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::worker::{Order, Worker};
use super::{admit, publish, sysctls};
use crate::shared::Shared;

struct Entry {
    orders: watch::Sender<Order>,
    news: Arc<Notify>,
    /// Revision of the last status that the worker wrote.
    published: Arc<AtomicU64>,
    /// Pod with a deferred resize.
    deferred: Option<Arc<Pod>>,
    /// The pod was created again while it terminates.
    recreated: bool,
}

/// A pod that has a worker.
pub type WorkingPod = Arc<Pod>;

/// Workers, by pod UID.
pub struct Workers {
    shared: Arc<Shared>,
    entries: Mutex<HashMap<String, Entry>>,
    rejecting: AtomicBool,
}

impl Workers {
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, entries: Mutex::new(HashMap::new()), rejecting: AtomicBool::new(false) })
    }

    /// Adds or updates a pod.
    pub fn put(self: &Arc<Self>, pod: Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&uid) {
            if entry.orders.borrow().gone && !std::mem::replace(&mut entry.recreated, true) {
                self.shared.metrics.pods.recreated(&pod);
            }
            self.change(&mut entries, &uid, pod);
            return;
        }
        // A pod that ran before this kubelet started has already been admitted.
        let new = pod.status.as_ref().is_none_or(|status| status.container_statuses.is_none());
        let rejected = if new && pod.metadata.deletion_timestamp.is_none() {
            let others: Vec<Arc<Pod>> =
                entries.values().map(|entry| Arc::clone(&entry.orders.borrow().pod)).collect();
            let allocatable = Arc::clone(&self.shared.allocatable.read());
            self.closed()
                .or_else(|| admit::other_os(&pod))
                .or_else(|| admit::apparmor_missing(&pod, sys::apparmor::is_enabled()))
                .or_else(|| sysctls::rejection(&pod, &self.shared.config.housekeeping.unsafe_sysctls))
                .or_else(|| admit::rejection(&pod, others.iter().map(AsRef::as_ref), &allocatable))
        } else {
            None
        };
        if new {
            let reason = rejected.as_ref().map(|(reason, _)| reason.as_str());
            self.shared.metrics.pods.added(&pod, reason);
        }
        if let Some((reason, message)) = &rejected {
            tracing::info!(pod = uid, reason, message, "pod rejected");
        }
        let evicted = rejected.map(|(reason, message)| (reason, message, None));
        // A pod that ran before keeps its allocated resources; a resize since then is admitted separately.
        let assigned = if new { Arc::clone(&pod) } else { Arc::new(admit::with_resources_of_status(&pod)) };
        let order = Order { pod: assigned, gone: false, evicted, resize: None, shown: 0 };
        entries.insert(uid.clone(), self.begin(uid.clone(), order));
        if !new {
            self.change(&mut entries, &uid, pod);
        }
    }

    /// Rejects all new pods from now on.
    pub fn reject_new(&self) {
        self.rejecting.store(true, Ordering::Relaxed);
    }

    fn closed(&self) -> Option<(String, String)> {
        self.rejecting
            .load(Ordering::Relaxed)
            .then(|| ("NodeShutdown".to_owned(), "Pod was rejected as the node is shutting down.".to_owned()))
    }

    /// Updates a pod that has a worker. A resize is applied only if it fits.
    fn change(&self, entries: &mut HashMap<String, Entry>, uid: &str, pod: Arc<Pod>) {
        let Some(before) = entries.get(uid).map(|entry| Arc::clone(&entry.orders.borrow().pod)) else {
            return;
        };
        let pending = if admit::resources_changed(&before, &pod) {
            let others: Vec<Arc<Pod>> =
                entries.values().map(|entry| Arc::clone(&entry.orders.borrow().pod)).collect();
            let allocatable = Arc::clone(&self.shared.allocatable.read());
            admit::exclusive_resize(&before, &pod, self.shared.cpus.is_static())
                .or_else(|| admit::resize_pending(&pod, others.iter().map(AsRef::as_ref), &allocatable))
        } else {
            None
        };
        let Some(entry) = entries.get_mut(uid) else { return };
        // A pod that waits for resources is checked again with the same resources.
        let is_checked_again =
            entry.deferred.as_ref().is_some_and(|waiting| !admit::resources_changed(waiting, &pod));
        if !is_checked_again {
            self.shared.metrics.pods.resize_requested(entry.deferred.as_ref().unwrap_or(&before), &pod);
        }
        entry.deferred = pending.is_some().then(|| Arc::clone(&pod));
        let pod = if pending.is_some() { Arc::new(admit::with_resources_of(&pod, &before)) } else { pod };
        let published = entry.published.load(Ordering::Acquire);
        entry.orders.send_if_modified(|order| {
            let is_foreign = is_foreign(&order.pod, &pod, published);
            let matters = !order.gone && (matters(&order.pod, &pod) || is_foreign || order.resize != pending);
            order.pod = pod;
            order.resize = pending;
            matters
        });
    }

    /// Retries deferred resizes after resources were freed.
    fn retry_deferred(&self, entries: &mut HashMap<String, Entry>) {
        let waiting: Vec<(String, Arc<Pod>)> = entries
            .iter()
            .filter_map(|(uid, entry)| Some((uid.clone(), Arc::clone(entry.deferred.as_ref()?))))
            .collect();
        for (uid, pod) in waiting {
            self.change(entries, &uid, pod);
            if entries.get(&uid).is_some_and(|entry| entry.deferred.is_none()) {
                self.shared.metrics.pods.resize_accepted();
            }
        }
    }

    /// Terminates a pod that no longer exists in the API server.
    pub fn gone(self: &Arc<Self>, pod: Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&uid) {
            entry.orders.send_modify(|order| order.gone = true);
            return;
        }
        let order = Order { pod, gone: true, evicted: None, resize: None, shown: 0 };
        entries.insert(uid.clone(), self.begin(uid, order));
    }

    /// Evicts the pod.
    pub fn evict(&self, uid: &str, reason: &str, message: String, grace: Option<i64>) {
        if let Some(entry) = self.entries.lock().get(uid) {
            entry.orders.send_modify(|order| order.evicted = Some((reason.to_owned(), message, grace)));
        }
    }

    /// Requests a status write to a newly created mirror pod.
    pub fn shown(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get(uid) {
            entry.orders.send_modify(|order| order.shown = order.shown.wrapping_add(1));
        }
    }

    /// Wakes the worker of a pod on a runtime event.
    pub fn wake(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get(uid) {
            entry.news.notify_one();
        }
    }

    /// Wakes all workers, after a change that affects every pod's status.
    pub fn wake_all(&self) {
        self.entries.lock().values().for_each(|entry| entry.news.notify_one());
    }

    #[must_use]
    pub fn contains(&self, uid: &str) -> bool {
        self.entries.lock().contains_key(uid)
    }

    /// Pods as their workers have them.
    #[must_use]
    pub fn pods(&self) -> Vec<WorkingPod> {
        let entries = self.entries.lock();
        entries
            .values()
            .map(|entry| entry.orders.borrow())
            .filter(|order| !order.gone)
            .map(|order| Arc::clone(&order.pod))
            .collect()
    }

    #[must_use]
    pub fn find(&self, namespace: &str, name: &str) -> Option<WorkingPod> {
        let wanted = |pod: &WorkingPod| {
            pod.metadata.namespace.as_deref() == Some(namespace) && pod.metadata.name.as_deref() == Some(name)
        };
        let mut found: Vec<_> = self.pods().into_iter().filter(wanted).collect();
        // Of two pods with the same name, the newer one.
        found.sort_by_key(|pod| pod.metadata.creation_timestamp.clone().map(|time| time.0));
        found.pop()
    }

    fn begin(self: &Arc<Self>, uid: String, order: Order) -> Entry {
        let (sender, receiver) = watch::channel(order);
        let news = Arc::new(Notify::new());
        // Boxed: the future of a sync is too large to move across thread stacks repeatedly.
        let published = Arc::new(AtomicU64::new(0));
        let worker =
            Worker::new(Arc::clone(&self.shared), receiver, Arc::clone(&news), Arc::clone(&published));
        let run = Box::pin(worker.run());
        let workers = Arc::clone(self);
        let stopping = self.shared.tasks.stopping();
        self.shared.tasks.spawn(async move {
            tokio::select! {
                gone = run => if gone {
                    let mut entries = workers.entries.lock();
                    entries.remove(&uid);
                    workers.retry_deferred(&mut entries);
                },
                () = stopping => {}
            }
        });
        Entry { orders: sender, news, published, deferred: None, recreated: false }
    }
}

/// Returns true if another client changed the parts of the status that only the kubelet writes, after the kubelet wrote
/// the status of revision `published`.
fn is_foreign(old: &Pod, new: &Pod, published: u64) -> bool {
    let statuses = old.status.as_ref().zip(new.status.as_ref());
    published != 0
        && publish::revision(new) > published
        && statuses.is_some_and(|(old, new)| publish::differs(old, new))
}

/// Returns true if the change is more than the kubelet's own status write.
fn matters(old: &Pod, new: &Pod) -> bool {
    let (a, b) = (&old.metadata, &new.metadata);
    let foreign = |pod: &Pod| {
        pod.status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .filter(|condition| !crate::lifecycle::conditions::OWNED.contains(&condition.type_.as_str()))
            .map(|condition| (condition.type_.clone(), condition.status.clone()))
            .collect::<Vec<_>>()
    };
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    a.generation != b.generation
        || a.deletion_timestamp != b.deletion_timestamp
        || a.deletion_grace_period_seconds != b.deletion_grace_period_seconds
        || a.labels != b.labels
        || a.annotations != b.annotations
        || old.spec != new.spec
        || phase(old) != phase(new)
        || foreign(old) != foreign(new)
}
