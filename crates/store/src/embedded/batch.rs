//! Evaluates a batch of transactions before any of them is applied.

use std::collections::HashMap;
use std::sync::Arc;

use super::queue::Reply;
use super::state::{PendingChange, State};
use crate::contract::{Event, KeyValue, LeaseId, Op, Outcome, Revision, Txn};
use crate::error::{Result, StoreError};

/// Transactions that are committed together, each evaluated on the result of the preceding ones.
#[derive(Default)]
pub(super) struct Batch {
    pub changes: Vec<PendingChange>,
    /// Keys that this batch has changed so far.
    touched: HashMap<Arc<str>, Option<KeyValue>>,
    replies: Vec<(Reply<Outcome>, Outcome)>,
    /// Bytes of the keys and values to be written.
    pub bytes: usize,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.replies.is_empty()
    }

    /// The revision after the changes so far.
    fn revision(&self, state: &State) -> Revision {
        state.revision + self.changes.len() as u64
    }

    /// Evaluates a transaction; its response is sent when the batch is durable.
    pub fn decide(&mut self, state: &State, txn: Txn, reply: Reply<Outcome>) {
        if let Op::Put { lease: Some(lease), .. } = &txn.op
            && !state.leases.contains(*lease)
        {
            let _ = reply.send(Err(StoreError::LeaseNotFound(*lease)));
            return;
        }
        let Txn { key, expect, op } = txn;
        let current = match self.touched.get(&key) {
            Some(touched) => touched.clone(),
            None => state.current.get(&key).cloned(),
        };
        let revision = self.revision(state);
        let outcome = if !expect.holds(current.as_ref()) {
            Outcome::Conflict { current, revision }
        } else if current.is_none() && matches!(op, Op::Delete) {
            Outcome::Committed { revision, prev: None }
        } else {
            self.change(state, key, current.clone(), op);
            Outcome::Committed { revision: revision + 1, prev: current }
        };
        self.replies.push((reply, outcome));
    }

    fn change(&mut self, state: &State, key: Arc<str>, prev: Option<KeyValue>, op: Op) {
        let change = PendingChange::new(key, prev, op, self.revision(state) + 1);
        let after = match &change.event {
            Event::Put { kv, .. } => Some(kv.clone()),
            Event::Delete { .. } => None,
        };
        self.bytes += change.event.key().len() + after.as_ref().map_or(0, |kv| kv.value.len());
        self.touched.insert(change.event.key().clone(), after);
        self.changes.push(change);
    }

    /// Adds the deletion of keys of a lease.
    pub fn delete_leased(&mut self, state: &State, lease: LeaseId, most: usize) {
        for key in state.leases.keys(lease, most) {
            if let Some(kv) = state.current.get(&key).cloned() {
                self.change(state, key, Some(kv), Op::Delete);
            }
        }
    }

    /// Sends all responses and clears the batch for reuse.
    pub fn answer(&mut self, result: Result<(), &StoreError>) {
        for (reply, outcome) in self.replies.drain(..) {
            // The receiver may have been dropped.
            let _ = reply.send(result.map(|()| outcome).map_err(Clone::clone));
        }
        self.changes.clear();
        self.touched.clear();
        self.bytes = 0;
    }
}
