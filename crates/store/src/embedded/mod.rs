//! The embedded backend: state and recent history in memory, durable through a write-ahead log.
//!
//! Reads are served from memory under a short read lock. Writes go through one commit thread ([`commit`]) that appends
//! whole batches to the [`log`] and syncs once per batch. The state is periodically written as a [`checkpoint`], after
//! which older log segments are reused. Opening is [`recovery`]: the newest checkpoint and the log after it.

mod batch;
mod checkpoint;
mod commit;
mod history;
mod io;
mod lease;
mod log;
mod queue;
mod record;
mod recovery;
mod segment;
mod state;
mod watchers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};

use self::checkpoint::Frozen;
use self::commit::Committer;
pub use self::io::{Disk, Io};
use self::queue::{Queue, Request};
use self::state::State;
use self::watchers::Watchers;
use crate::contract::{
    KeyValue, LeaseId, Op, Outcome, RangeRequest, RangeResponse, Revision, Store, StoreHealth, Txn,
    WatchHandle, WatchSink,
};
use crate::error::{Result, StoreError};

/// Largest key and value together.
const LARGEST: usize = 4 << 20;
/// Smallest segment: a full batch and the largest value fit.
const SMALLEST_SEGMENT: u64 = 8 << 20;
/// Default size limit: etcd's largest recommended one.
pub const DEFAULT_QUOTA_BYTES: u64 = 8 << 30;

/// Settings of the embedded backend.
#[derive(Clone)]
pub struct EmbeddedOptions {
    /// Directory of the store; created if missing.
    pub directory: PathBuf,
    /// History older than this is dropped.
    pub history_age: Duration,
    /// History beyond this much memory is dropped, oldest first.
    pub history_bytes: usize,
    /// Size of a log segment; at least 8 MiB.
    pub segment_bytes: u64,
    /// A checkpoint is written when the log since the last one reaches this, and the last one's size.
    pub checkpoint_bytes: u64,
    /// Size limit of all keys and values together; beyond it, writes other than deletes are rejected.
    pub quota_bytes: u64,
    /// File operations; tests substitute a failing disk.
    pub io: Arc<dyn Io>,
}

impl EmbeddedOptions {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            history_age: Duration::from_secs(5 * 60),
            history_bytes: 16 << 20,
            segment_bytes: SMALLEST_SEGMENT,
            checkpoint_bytes: 32 << 20,
            quota_bytes: DEFAULT_QUOTA_BYTES,
            io: Arc::new(Disk),
        }
    }
}

/// The embedded store.
///
/// ```
/// use store::{Embedded, EmbeddedOptions, Expect, Op, Outcome, Store, Txn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> store::Result<()> {
/// # let directory = tempfile::tempdir().expect("a directory");
/// let store = Embedded::open(EmbeddedOptions::new(directory.path()))?;
/// let create = Txn {
///     key: "/pods/a".into(),
///     expect: Expect::Absent,
///     op: Op::Put { value: "1".into(), lease: None },
/// };
/// assert!(matches!(store.txn(create.clone()).await?, Outcome::Committed { .. }));
/// assert!(matches!(store.txn(create).await?, Outcome::Conflict { .. }));
/// let (found, _revision) = store.get("/pods/a").await?;
/// assert_eq!(found.expect("the key exists").value, "1");
/// store.close().await;
/// # Ok(())
/// # }
/// ```
pub struct Embedded {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the store's handle and its commit thread. Lock order: `watchers` before `state`; commits hold it
/// from making changes visible until the sinks have received them.
struct Shared {
    options: EmbeddedOptions,
    state: RwLock<State>,
    watchers: Mutex<Watchers>,
    queue: Queue,
    /// Revision up to which all sinks have been notified.
    revision: AtomicU64,
    /// A commit is readable, but not all sinks have been notified of it.
    reporting: AtomicBool,
    clock: Clock,
    /// The failure that stopped all writes.
    failure: Mutex<Option<StoreError>>,
    /// The size limit is reached.
    quota_exceeded: AtomicBool,
}

impl Shared {
    fn history_age_ms(&self) -> u64 {
        self.options.history_age.as_millis() as u64
    }
}

/// Milliseconds since the epoch, monotonic while the process runs.
struct Clock {
    base: u64,
    started: Instant,
}

impl Clock {
    #[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "the only clock of this crate"))]
    fn start() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { base: since.as_millis() as u64, started: Instant::now() }
    }

    fn now(&self) -> u64 {
        self.base + self.started.elapsed().as_millis() as u64
    }
}

impl Embedded {
    /// Opens the store in `options.directory`, or creates one there. Blocks while it reads.
    #[expect(clippy::disallowed_methods, reason = "a named thread; this crate cannot use `base`")]
    pub fn open(options: EmbeddedOptions) -> Result<Self> {
        let mut options = options;
        options.segment_bytes = options.segment_bytes.max(SMALLEST_SEGMENT);
        let recovered = recovery::recover(&options)?;
        let directory = options.directory.clone();
        let shared = Arc::new(Shared {
            revision: AtomicU64::new(recovered.state.revision),
            reporting: AtomicBool::new(false),
            failure: Mutex::default(),
            quota_exceeded: AtomicBool::new(false),
            state: RwLock::new(recovered.state),
            watchers: Mutex::default(),
            queue: Queue::default(),
            clock: Clock::start(),
            options,
        });
        let committer = Committer::new(shared.clone(), recovered.journal);
        let thread = std::thread::Builder::new()
            .name("store-commit".to_owned())
            .spawn(move || committer.run())
            .map_err(StoreError::io("start the commit thread of", directory))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Reports whether the directory holds a store.
    pub fn exists(directory: &Path) -> std::io::Result<bool> {
        match recovery::is_occupied(directory) {
            Ok(occupied) => Ok(occupied),
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(StoreError::Io { source, .. }) => Err(source.kind().into()),
            Err(error) => Err(std::io::Error::other(error)),
        }
    }

    /// Creates a store in an empty directory from a snapshot; returns its revision. The revision skips
    /// `skip_revisions`, so that revisions which the old store reached after the snapshot are not reused.
    pub fn restore(snapshot: &Path, directory: &Path, skip_revisions: u64) -> Result<Revision> {
        recovery::private_directory(directory)?;
        let _lock = recovery::lock(directory)?;
        if recovery::is_occupied(directory)? {
            let reason = "the directory already holds a store".into();
            return Err(StoreError::Refused { reason });
        }
        let loaded = checkpoint::load(snapshot, Instant::now())?;
        let mut frozen = Frozen::of(&loaded.state);
        frozen.skip_revisions(skip_revisions);
        let revision = frozen.revision;
        let path = recovery::checkpoint_path(directory, frozen.index);
        frozen.write(&Disk, &path, true)?;
        Ok(revision)
    }

    fn stop(&self) {
        self.shared.queue.close();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the store's commit thread panicked");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop();
    }
}

#[async_trait]
impl Store for Embedded {
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        let state = self.shared.state.read();
        Ok((state.current.get(key).cloned(), state.revision))
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.shared.state.read().range(&request)
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        if txn.key.is_empty() {
            return Err(StoreError::Refused { reason: "the key is empty".into() });
        }
        let value = if let Op::Put { value, .. } = &txn.op { value.len() } else { 0 };
        let size = txn.key.len() + value;
        if size > LARGEST {
            return Err(StoreError::TooLarge { key: txn.key, size, limit: LARGEST });
        }
        self.shared.queue.send(|reply| Request::Txn { txn, reply }).await
    }

    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle> {
        let cancelled = {
            let mut watchers = self.shared.watchers.lock();
            let state = self.shared.state.read();
            state.check_revision(after)?;
            watchers.add(prefix, sink, state.history.after(after), state.revision)
        };
        let shared = Arc::downgrade(&self.shared);
        Ok(WatchHandle::new(move || {
            cancelled.store(true, Ordering::Release);
            // If events are being delivered, the next commit removes it.
            if let Some(shared) = shared.upgrade()
                && let Some(mut watchers) = shared.watchers.try_lock()
            {
                watchers.sweep();
            }
        }))
    }

    async fn barrier(&self) -> Result<Revision> {
        if self.shared.reporting.load(Ordering::Acquire) {
            // Its changes may have been read already.
            drop(self.shared.watchers.lock());
        }
        Ok(self.shared.revision.load(Ordering::Acquire))
    }

    fn revision(&self) -> Revision {
        self.shared.revision.load(Ordering::Acquire)
    }

    fn health(&self) -> StoreHealth {
        let directory = self.shared.options.directory.display();
        let failure = self.shared.failure.lock().as_ref().map(|error| {
            format!(
                "{error}; check the disk that holds {directory} (kernel log, free space), then restart ferry"
            )
        });
        StoreHealth {
            failure,
            size_bytes: Some(self.shared.state.read().bytes),
            quota_bytes: Some(self.shared.options.quota_bytes),
            quota_exceeded: self.shared.quota_exceeded.load(Ordering::Acquire),
        }
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.shared.queue.send(|reply| Request::Compact { revision, reply }).await
    }

    async fn compacted(&self) -> Result<Revision> {
        Ok(self.shared.state.read().history.compacted())
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId> {
        self.shared.queue.send(|reply| Request::Grant { ttl, reply }).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.shared.queue.send(|reply| Request::Revoke { lease, reply }).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<()> {
        self.shared.queue.send(|reply| Request::KeepAlive { lease, reply }).await
    }

    async fn snapshot(&self, to: &Path) -> Result<Revision> {
        let frozen = Frozen::of(&self.shared.state.read());
        let (io, to) = (self.shared.options.io.clone(), to.to_owned());
        let revision = frozen.revision;
        let written = tokio::task::spawn_blocking(move || frozen.write(&*io, &to, true).map(|_| revision));
        written.await.unwrap_or(Err(StoreError::Closed))
    }

    async fn close(&self) {
        self.shared.queue.close();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}
