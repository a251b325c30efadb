//! The commit thread: the only writer. It takes all queued requests, evaluates them, makes them durable with one
//! write and one sync, applies them to memory, notifies the watches and responds to the callers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Shared;
use super::batch::Batch;
use super::checkpoint::Frozen;
use super::log::{AppendError, Log};
use super::queue::Request;
use super::record::{Record, put_u64};
use super::recovery::{Journal, Lock, checkpoint_path, remove_checkpoints_before};
use super::state::{PendingChange, State, size_of};
use crate::contract::{Event, LeaseId, Op, Revision};
use crate::error::{Result, StoreError};

/// A batch is written when it has this many bytes. With the largest value it must fit in a segment.
pub(super) const BATCH_BYTES: usize = 1 << 20;
/// Keys of a lease deleted in one commit.
const LEASE_KEYS: usize = 1024;
/// Delay before a failed lease expiry is retried.
const LEASE_RETRY: Duration = Duration::from_secs(1);
/// Share of the size limit that must be free before writes are accepted again.
const FREE_QUOTA_PERCENT: u64 = 20;
/// Interval at which history is trimmed by age.
const TRIM_STEP: Duration = Duration::from_secs(10);

pub(super) struct Committer {
    shared: Arc<Shared>,
    log: Log,
    batch: Batch,
    poisoned: Option<StoreError>,
    /// Time before which no lease expiry is attempted, set after a failure.
    leases_rest_until: Option<Instant>,
    /// Log bytes written since the last checkpoint.
    log_bytes: u64,
    checkpoint_bytes: u64,
    checkpointing: Option<(JoinHandle<()>, u64)>,
    /// Held until the thread ends.
    _lock: Lock,
}

impl Committer {
    pub fn new(shared: Arc<Shared>, journal: Journal) -> Self {
        let Journal { log, lock, checkpoint_bytes, log_bytes } = journal;
        Self {
            shared,
            log,
            batch: Batch::default(),
            poisoned: None,
            leases_rest_until: None,
            log_bytes,
            checkpoint_bytes,
            checkpointing: None,
            _lock: lock,
        }
    }

    /// Runs until the queue is closed.
    pub fn run(mut self) {
        // Also runs when a sink panics, so that no caller waits forever.
        let _guard = Abandon(self.shared.clone());
        let mut requests = Vec::new();
        while let Some(taken) = self.shared.queue.take(self.next_deadline(), requests) {
            requests = taken;
            for request in requests.drain(..) {
                self.serve(request);
            }
            self.flush();
            self.end_leases();
            self.trim();
            self.checkpoint_if_due();
        }
        self.finish();
    }

    fn serve(&mut self, request: Request) {
        if let Request::Txn { txn, reply } = request {
            if let Some(error) = &self.poisoned {
                let _ = reply.send(Err(error.clone()));
                return;
            }
            if let Op::Put { value, .. } = &txn.op
                && self.exceeds_quota(&txn.key, value.len())
            {
                let _ = reply.send(Err(StoreError::QuotaExceeded));
                return;
            }
            self.batch.decide(&self.shared.state.read(), txn, reply);
            if self.batch.bytes >= BATCH_BYTES {
                self.flush();
            }
            return;
        }
        // Other requests are rare and processed individually between batches.
        self.flush();
        match request {
            Request::Txn { .. } => {}
            Request::Compact { revision, reply } => {
                let _ = reply.send(self.compact(revision));
            }
            Request::Grant { ttl, reply } => {
                let _ = reply.send(self.grant(ttl));
            }
            Request::Revoke { lease, reply } => {
                let _ = reply.send(self.revoke(lease));
            }
            Request::KeepAlive { lease, reply } => {
                let renewed = self.shared.state.write().leases.renew(lease, Instant::now());
                let _ = reply.send(if renewed { Ok(()) } else { Err(StoreError::LeaseNotFound(lease)) });
            }
            Request::Checkpointed { index, result } => self.checkpointed(index, result),
        }
    }

    /// Reports whether a put must be rejected because the store has reached its size limit. As with etcd's alarm,
    /// every put is then rejected until deletes have freed space.
    fn exceeds_quota(&self, key: &str, value: usize) -> bool {
        let (bytes, old) = {
            let state = self.shared.state.read();
            (state.bytes, state.current.get(key).map_or(0, size_of))
        };
        let quota = self.shared.options.quota_bytes;
        let alarm = &self.shared.quota_exceeded;
        if alarm.load(Ordering::Acquire) {
            if bytes > quota - quota / FREE_QUOTA_PERCENT {
                return true;
            }
            alarm.store(false, Ordering::Release);
            tracing::warn!(bytes, quota, "the store is below its size limit again; writes are accepted");
        }
        let growth = (key.len() + value + self.batch.bytes) as u64;
        if bytes.saturating_add(growth).saturating_sub(old) <= quota {
            return false;
        }
        alarm.store(true, Ordering::Release);
        tracing::error!(
            bytes,
            quota,
            "the store has reached its size limit; writes other than deletes are refused until objects are deleted \
             or the limit is raised"
        );
        true
    }

    /// Makes the batch durable, then visible, then notifies watches.
    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let result = self.commit(None);
        self.batch.answer(result.as_ref().map(|_| ()));
    }

    /// Commits the changes of the batch, followed by a record.
    fn commit(&mut self, last: Option<Record<'_>>) -> Result<()> {
        if self.batch.changes.is_empty() && last.is_none() {
            return Ok(());
        }
        let at = self.shared.clock.now();
        let changes = &self.batch.changes;
        append(&mut self.log, &self.shared, &mut self.poisoned, &mut self.log_bytes, |out| {
            put_u64(out, at);
            changes.iter().for_each(|change| Record::of(&change.event, change.lease).encode(out));
            last.iter().for_each(|record| record.encode(out));
        })?;
        let shared = &self.shared;
        let events: Vec<Event> = changes.iter().map(|change| change.event.clone()).collect();
        let mut watchers = shared.watchers.lock();
        shared.reporting.store(true, Ordering::Release);
        let revision = {
            let mut state = shared.state.write();
            let state = &mut *state;
            self.batch.changes.drain(..).for_each(|change: PendingChange| state.apply(change, at));
            state.index = self.log.index();
            apply_last(state, last);
            state.history.trim(at.saturating_sub(shared.history_age_ms()), shared.options.history_bytes);
            state.revision
        };
        if !events.is_empty() {
            watchers.dispatch(events.iter(), revision);
        }
        shared.revision.store(revision, Ordering::Release);
        shared.reporting.store(false, Ordering::Release);
        Ok(())
    }

    fn compact(&mut self, revision: Revision) -> Result<()> {
        {
            let state = self.shared.state.read();
            if revision > state.revision {
                return Err(StoreError::FutureRevision { requested: revision, current: state.revision });
            }
            if revision <= state.history.compacted() {
                return Ok(());
            }
        }
        self.commit(Some(Record::Compact { revision }))
    }

    fn grant(&mut self, ttl: Duration) -> Result<LeaseId> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, MOST_TTL_MS);
        let lease = LeaseId(rand::random_range(1..=i64::MAX));
        self.commit(Some(Record::Grant { lease, ttl_ms }))?;
        Ok(lease)
    }

    /// Deletes the lease's keys and then the lease, in as many commits as it takes.
    fn revoke(&mut self, lease: LeaseId) -> Result<()> {
        if !self.shared.state.read().leases.contains(lease) {
            return Err(StoreError::LeaseNotFound(lease));
        }
        loop {
            self.batch.delete_leased(&self.shared.state.read(), lease, LEASE_KEYS);
            let last = (self.batch.changes.len() < LEASE_KEYS).then_some(Record::Revoke { lease });
            let done = last.is_some();
            let result = self.commit(last);
            self.batch.answer(result.as_ref().map(|_| ()));
            result?;
            if done {
                return Ok(());
            }
        }
    }

    fn end_leases(&mut self) {
        let now = Instant::now();
        if self.poisoned.is_some() || self.leases_rest_until.is_some_and(|until| now < until) {
            return;
        }
        self.leases_rest_until = None;
        let expired = self.shared.state.read().leases.expired(now);
        for lease in expired {
            if let Err(error) = self.revoke(lease) {
                tracing::warn!(%lease, %error, "failed to revoke an expired lease, retrying");
                self.leases_rest_until = Some(now + LEASE_RETRY);
                return;
            }
        }
    }

    fn trim(&mut self) {
        let oldest = self.shared.clock.now().saturating_sub(self.shared.history_age_ms());
        let due = self.shared.state.read().history.oldest().is_some_and(|at| at < oldest);
        if due {
            let bytes = self.shared.options.history_bytes;
            self.shared.state.write().history.trim(oldest, bytes);
        }
    }

    /// Time of the next scheduled work.
    fn next_deadline(&self) -> Option<Instant> {
        let state = self.shared.state.read();
        let lease = match &self.poisoned {
            Some(_) => None,
            None => state
                .leases
                .next_deadline()
                .max(self.leases_rest_until.filter(|_| state.leases.next_deadline().is_some())),
        };
        let trim = state.history.oldest().map(|at| {
            let due = (at + self.shared.history_age_ms()).saturating_sub(self.shared.clock.now());
            Instant::now() + Duration::from_millis(due) + TRIM_STEP
        });
        lease.into_iter().chain(trim).min()
    }

    #[expect(clippy::disallowed_methods, reason = "a named thread; this crate cannot use `base`")]
    fn checkpoint_if_due(&mut self) {
        let due = self.shared.options.checkpoint_bytes.max(self.checkpoint_bytes);
        if self.log_bytes < due || self.checkpointing.is_some() || self.poisoned.is_some() {
            return;
        }
        let frozen = Frozen::of(&self.shared.state.read());
        let shared = self.shared.clone();
        let spawned = std::thread::Builder::new().name("store-checkpoint".to_owned()).spawn(move || {
            let index = frozen.index;
            let path = checkpoint_path(&shared.options.directory, index);
            // A panic counts as a failure: the committer waits for the result before it starts the next checkpoint.
            let written = catch_unwind(AssertUnwindSafe(|| frozen.write(&*shared.options.io, &path, false)));
            let result = written.unwrap_or_else(|_| {
                let panicked = std::io::Error::other("the checkpoint thread panicked");
                Err(StoreError::io("write", &path)(panicked))
            });
            shared.queue.push(Request::Checkpointed { index, result });
        });
        match spawned {
            Ok(thread) => self.checkpointing = Some((thread, self.log_bytes)),
            Err(error) => tracing::warn!(%error, "failed to start the checkpoint thread"),
        }
    }

    fn checkpointed(&mut self, index: u64, result: Result<u64>) {
        let Some((thread, covered)) = self.checkpointing.take() else { return };
        let _ = thread.join();
        match result {
            Ok(size) => {
                self.log_bytes = self.log_bytes.saturating_sub(covered);
                self.checkpoint_bytes = size;
                remove_checkpoints_before(&self.shared.options.directory, index);
                self.log.release(index);
            }
            Err(error) => {
                // The log has everything; retry when it has grown by half as much again.
                tracing::warn!(%error, "checkpoint failed, log segments are retained");
                self.checkpoint_bytes = self.log_bytes + self.shared.options.checkpoint_bytes / 2;
            }
        }
    }

    fn finish(mut self) {
        if let Some((thread, _)) = self.checkpointing.take() {
            let _ = thread.join();
        }
        if self.poisoned.is_none() {
            // With a frame behind it, damage to the last frame is distinguishable from an unfinished write.
            let _ = self.commit(Some(Record::Closed));
        }
        self.shared.watchers.lock().close(&StoreError::Closed);
    }
}

/// A century: more than any lease needs, and safe to add to a clock.
const MOST_TTL_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

fn apply_last(state: &mut State, last: Option<Record<'_>>) {
    match last {
        Some(Record::Compact { revision }) => state.history.compact(revision),
        Some(Record::Grant { lease, ttl_ms }) => {
            state.leases.grant(lease, Duration::from_millis(ttl_ms), Instant::now());
        }
        Some(Record::Revoke { lease }) => state.leases.revoke(lease),
        Some(Record::Put { .. } | Record::Delete { .. } | Record::Closed) | None => {}
    }
}

/// Appends a frame; a failure that leaves the disk's contents unknown stops all writes.
fn append(
    log: &mut Log,
    shared: &Shared,
    poisoned: &mut Option<StoreError>,
    log_bytes: &mut u64,
    encode: impl FnOnce(&mut Vec<u8>),
) -> Result<()> {
    if let Some(error) = poisoned {
        return Err(error.clone());
    }
    match log.append(encode) {
        Ok(bytes) => {
            *log_bytes += bytes;
            Ok(())
        }
        Err(AppendError::Full) => Err(StoreError::NoSpace),
        Err(AppendError::Passing { operation, path, source }) => {
            let reason = format!("{operation} {}: {source}", path.display());
            tracing::warn!(%reason, "failed to extend the write-ahead log, writes are rejected and may be retried");
            Err(StoreError::Unavailable { reason: reason.into() })
        }
        Err(AppendError::Failed { operation, path, source }) => {
            let reason = format!("{operation} {}: {source}", path.display());
            tracing::error!(%reason, "write-ahead log failed, the store is read-only until restart");
            let error = StoreError::Poisoned { reason: reason.into() };
            *poisoned = Some(error.clone());
            *shared.failure.lock() = Some(error.clone());
            Err(error)
        }
    }
}

struct Abandon(Arc<Shared>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.failure.lock().get_or_insert(StoreError::Closed);
        self.0.queue.abandon();
    }
}
