//! Leases and the keys attached to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::contract::LeaseId;

/// All leases. Deadlines are not durable: a restart renews every lease.
#[derive(Default)]
pub(super) struct Leases {
    leases: BTreeMap<LeaseId, Lease>,
    /// Leases by expiry time.
    deadlines: BTreeSet<(Instant, LeaseId)>,
    /// The lease of each key that has one.
    attached: HashMap<Arc<str>, LeaseId>,
}

pub(super) struct Lease {
    pub ttl: Duration,
    deadline: Instant,
    keys: BTreeSet<Arc<str>>,
}

impl Leases {
    pub fn grant(&mut self, id: LeaseId, ttl: Duration, now: Instant) {
        let deadline = now + ttl;
        self.leases.insert(id, Lease { ttl, deadline, keys: BTreeSet::new() });
        self.deadlines.insert((deadline, id));
    }

    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    pub fn of(&self, key: &str) -> Option<LeaseId> {
        self.attached.get(key).copied()
    }

    /// Renews the lease; false if it does not exist.
    pub fn renew(&mut self, id: LeaseId, now: Instant) -> bool {
        let Some(lease) = self.leases.get_mut(&id) else { return false };
        self.deadlines.remove(&(lease.deadline, id));
        lease.deadline = now + lease.ttl;
        self.deadlines.insert((lease.deadline, id));
        true
    }

    /// Removes the lease, whose keys must have been deleted before.
    pub fn revoke(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.remove(&id) else { return };
        self.deadlines.remove(&(lease.deadline, id));
        for key in &lease.keys {
            self.attached.remove(key);
        }
    }

    /// Attaches the key to this lease and detaches it from any other.
    pub fn attach(&mut self, key: &Arc<str>, lease: Option<LeaseId>) {
        if self.attached.is_empty() && lease.is_none() {
            return;
        }
        if let Some(before) = self.attached.remove(key)
            && let Some(before) = self.leases.get_mut(&before)
        {
            before.keys.remove(key);
        }
        if let Some(id) = lease
            && let Some(lease) = self.leases.get_mut(&id)
        {
            lease.keys.insert(key.clone());
            self.attached.insert(key.clone(), id);
        }
    }

    /// Up to `limit` keys of the lease.
    pub fn keys(&self, id: LeaseId, limit: usize) -> Vec<Arc<str>> {
        let lease = self.leases.get(&id);
        lease.map(|lease| lease.keys.iter().take(limit).cloned().collect()).unwrap_or_default()
    }

    /// Deadline of the next lease.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    pub fn expired(&self, now: Instant) -> Vec<LeaseId> {
        self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).map(|(_, id)| *id).collect()
    }
}
