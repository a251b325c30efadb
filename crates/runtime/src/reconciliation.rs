//! One reconciliation of a key, and its cause, which its writes carry.
//!
//! The key's own object outranks its dependents. If another writer changed it since the last successful
//! reconciliation, that change is the cause, however late or early the reconciliation was requested; otherwise it is
//! the latest of the other changes that enqueued the key. The loop's own writes to its object are never a cause.

use std::any::TypeId;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use client::{Cause, Causes};
use parking_lot::Mutex;

use crate::harness::Descriptor;
use crate::key::Key;
use crate::queue::Trigger;

tokio::task_local! {
    static CURRENT: Arc<Reconciliation>;
}

/// Maximum number of recorded own writes of a loop, over all objects: their events follow shortly.
const OWN: usize = 1024;

/// Revisions of a loop's objects at their last reconciliation, and the loop's own writes to them.
#[derive(Debug, Default)]
pub(crate) struct ReconciledRevisions {
    kind: std::sync::OnceLock<TypeId>,
    revisions: Mutex<HashMap<Key, u64>>,
    own: Mutex<VecDeque<u64>>,
}

impl ReconciledRevisions {
    /// Kind of the objects that keys name.
    pub fn set_kind<K: 'static>(&self) {
        self.kind.get_or_init(TypeId::of::<K>);
    }

    pub fn is_of<K: 'static>(&self) -> bool {
        self.kind.get() == Some(&TypeId::of::<K>())
    }

    fn is_own(&self, revision: u64) -> bool {
        self.own.lock().contains(&revision)
    }
}

/// A reconciliation in progress.
#[derive(Debug)]
pub(crate) struct Reconciliation {
    controller: &'static str,
    resource: &'static str,
    key: Key,
    loop_seen: Arc<ReconciledRevisions>,
    /// Revision after the last reconciliation; 0 for the first.
    before: u64,
    /// Latest revision that this reconciliation has read.
    latest: AtomicU64,
    /// Cause that writes carry.
    cause: AtomicU64,
}

impl Reconciliation {
    pub fn new(
        descriptor: &Descriptor,
        key: &Key,
        trigger: Trigger,
        seen: &Arc<ReconciledRevisions>,
    ) -> Arc<Self> {
        let before = seen.revisions.lock().get(key).copied().unwrap_or(0);
        let news = trigger.object.into_iter().find(|revision| *revision > before && !seen.is_own(*revision));
        let cause = news.or(trigger.others).unwrap_or(trigger.object[0]);
        Arc::new(Self {
            controller: descriptor.name,
            resource: descriptor.resource,
            key: key.clone(),
            loop_seen: Arc::clone(seen),
            before,
            latest: AtomicU64::new(before),
            cause: AtomicU64::new(cause),
        })
    }

    /// Revision that caused the reconciliation, as far as it is known; 0 for a timer.
    pub fn cause_revision(&self) -> u64 {
        self.cause.load(Ordering::Relaxed)
    }

    /// Runs `work` and records its reads of the object.
    pub async fn run<F: Future>(self: Arc<Self>, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// Records success: the revisions that were read are done.
    pub fn succeeded(&self) {
        let latest = self.latest.load(Ordering::Relaxed);
        let mut revisions = self.loop_seen.revisions.lock();
        if latest == 0 {
            revisions.remove(&self.key);
        } else {
            revisions.insert(self.key.clone(), latest);
        }
    }

    fn names<K: 'static>(&self, ns: &str, name: &str) -> bool {
        *self.key.name == *name && *self.key.namespace == *ns && self.loop_seen.is_of::<K>()
    }

    fn read(&self, revision: Option<u64>) {
        let Some(revision) = revision else {
            // The object is deleted; another one of its name is new.
            self.latest.store(0, Ordering::Relaxed);
            return;
        };
        self.latest.fetch_max(revision, Ordering::Relaxed);
        if revision > self.before && !self.loop_seen.is_own(revision) {
            self.cause.store(revision, Ordering::Relaxed);
        }
    }
}

/// Records that the current reconciliation, if any, has read an object.
pub(crate) fn read<K: 'static>(ns: &str, name: &str, revision: impl FnOnce() -> Option<u64>) {
    // Outside of a reconciliation there is nothing to record.
    let _ = CURRENT.try_with(|reconciliation| {
        if reconciliation.names::<K>(ns, name) {
            reconciliation.read(revision());
        }
    });
}

impl Causes for Reconciliation {
    fn cause(&self) -> Cause {
        let revision = match self.cause.load(Ordering::Relaxed) {
            0 => String::new(),
            revision => revision.to_string(),
        };
        Cause {
            controller: self.controller.to_owned(),
            object: format!("{}/{}", self.resource, self.key),
            revision,
        }
    }

    fn wrote(&self, kind: TypeId, ns: &str, name: &str, revision: &str) {
        let own =
            self.loop_seen.kind.get() == Some(&kind) && *self.key.name == *name && *self.key.namespace == *ns;
        if let (true, Ok(revision)) = (own, revision.parse::<u64>()) {
            let mut own = self.loop_seen.own.lock();
            if own.len() >= OWN {
                own.pop_front();
            }
            own.push_back(revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Object;

    const DESCRIPTOR: Descriptor = Descriptor { name: "l", resource: "objects", identity: "", workers: 1 };

    fn trigger(object: [u64; 2], others: u64) -> Trigger {
        let others = Some(others).filter(|revision| *revision > 0);
        Trigger { object: [object[0], object[1], 0, 0], others }
    }

    #[tokio::test]
    async fn cause_object_change_outranks_dependents() {
        let seen = Arc::new(ReconciledRevisions::default());
        seen.set_kind::<Object>();
        let key = Key::new("n", "a");
        // Triggers, revision read, revision written to the object, and the expected cause.
        for (requested, found, wrote, expected) in [
            (trigger([10, 0], 0), 10, 0, "10"),
            // An event of a dependent arrives, but the object has changed too, and is read.
            (trigger([0, 0], 11), 12, 0, "12"),
            // The late event of that change: it has been reconciled already.
            (trigger([12, 0], 0), 12, 13, "12"),
            // The loop's own write is no cause.
            (trigger([13, 0], 14), 13, 16, "14"),
            // Nor does it hide an earlier foreign write that the loop has not seen.
            (trigger([16, 15], 17), 16, 0, "15"),
            // A foreign write to the object, and a later change of a dependent.
            (trigger([18, 0], 19), 18, 0, "18"),
            (trigger([0, 0], 0), 18, 0, ""),
        ] {
            let reconciliation = Reconciliation::new(&DESCRIPTOR, &key, requested, &seen);
            Arc::clone(&reconciliation)
                .run(async {
                    read::<Object>("n", "other", || Some(99));
                    read::<u8>("n", "a", || Some(99));
                    read::<Object>("n", "a", || Some(found));
                })
                .await;
            assert_eq!(reconciliation.cause().revision, expected, "{requested:?}");
            if wrote > 0 {
                reconciliation.wrote(TypeId::of::<Object>(), "n", "a", &wrote.to_string());
            }
            reconciliation.succeeded();
        }
        let gone = Reconciliation::new(&DESCRIPTOR, &key, trigger([0, 0], 20), &seen);
        Arc::clone(&gone).run(async { read::<Object>("n", "a", || None) }).await;
        gone.succeeded();
        assert!(seen.revisions.lock().is_empty());
        assert_eq!(gone.cause().header(), "loop=l; object=objects/n/a; revision=20");
    }
}
