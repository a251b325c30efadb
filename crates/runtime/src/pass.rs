//! One pass of a loop over one key, and why it was made: what its writes name as their cause.
//!
//! The object itself outranks what it owns. If somebody else changed it since the last pass that succeeded, that change
//! is the reason, however late or early the pass was asked for; if not, it is the latest change among the others that
//! asked for it. What the loop itself wrote to its object is no reason for anything.

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
    static CURRENT: Arc<Pass>;
}

/// Own writes that are remembered, of all objects of a loop: their events are not far behind.
const OWN: usize = 1024;

/// Objects of a loop as its passes last saw them, and what it wrote to them itself.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    kind: std::sync::OnceLock<TypeId>,
    revisions: Mutex<HashMap<Key, u64>>,
    own: Mutex<VecDeque<u64>>,
}

impl Seen {
    /// The kind of the objects that keys name.
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

/// A pass under way.
#[derive(Debug)]
pub(crate) struct Pass {
    controller: &'static str,
    resource: &'static str,
    key: Key,
    loop_seen: Arc<Seen>,
    /// The object as the last pass left it; nothing if this is the first.
    before: u64,
    /// The latest of it that this pass has read.
    latest: AtomicU64,
    /// What writes name.
    cause: AtomicU64,
}

impl Pass {
    pub fn new(descriptor: &Descriptor, key: &Key, trigger: Trigger, seen: &Arc<Seen>) -> Arc<Self> {
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

    /// Runs `work` so that what it reads of its object is noticed.
    pub async fn run<F: Future>(self: Arc<Self>, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// The pass succeeded: what it saw is dealt with.
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
            // It is gone; should there be another one of its name, that is new.
            self.latest.store(0, Ordering::Relaxed);
            return;
        };
        self.latest.fetch_max(revision, Ordering::Relaxed);
        if revision > self.before && !self.loop_seen.is_own(revision) {
            self.cause.store(revision, Ordering::Relaxed);
        }
    }
}

/// Notes that the current pass, if there is one, has read an object.
pub(crate) fn read<K: 'static>(ns: &str, name: &str, revision: impl FnOnce() -> Option<u64>) {
    // Outside of a pass there is nothing to note.
    let _ = CURRENT.try_with(|pass| {
        if pass.names::<K>(ns, name) {
            pass.read(revision());
        }
    });
}

impl Causes for Pass {
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
    async fn the_object_outranks_what_it_owns() {
        let seen = Arc::new(Seen::default());
        seen.set_kind::<Object>();
        let key = Key::new("n", "a");
        // Triggers, what is read, what is written to the object, and the cause that writes name.
        for (asked, found, wrote, expected) in [
            (trigger([10, 0], 0), 10, 0, "10"),
            // An event of something it owns comes, but the object has changed too, and is read.
            (trigger([0, 0], 11), 12, 0, "12"),
            // The event of that change comes after all: it has been dealt with.
            (trigger([12, 0], 0), 12, 13, "12"),
            // What the loop wrote itself is no reason.
            (trigger([13, 0], 14), 13, 16, "14"),
            // Nor does it hide what somebody wrote before it without the loop having seen it.
            (trigger([16, 15], 17), 16, 0, "15"),
            // Somebody changed it, and something it owns changed later still.
            (trigger([18, 0], 19), 18, 0, "18"),
            (trigger([0, 0], 0), 18, 0, ""),
        ] {
            let pass = Pass::new(&DESCRIPTOR, &key, asked, &seen);
            Arc::clone(&pass)
                .run(async {
                    read::<Object>("n", "other", || Some(99));
                    read::<u8>("n", "a", || Some(99));
                    read::<Object>("n", "a", || Some(found));
                })
                .await;
            assert_eq!(pass.cause().revision, expected, "{asked:?}");
            if wrote > 0 {
                pass.wrote(TypeId::of::<Object>(), "n", "a", &wrote.to_string());
            }
            pass.succeeded();
        }
        let gone = Pass::new(&DESCRIPTOR, &key, trigger([0, 0], 20), &seen);
        Arc::clone(&gone).run(async { read::<Object>("n", "a", || None) }).await;
        gone.succeeded();
        assert!(seen.revisions.lock().is_empty());
        assert_eq!(gone.cause().header(), "loop=l; object=objects/n/a; revision=20");
    }
}
