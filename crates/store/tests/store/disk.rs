//! The embedded backend on disks that fill up, fail, lose the end of files or flip bits.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use store::embedded::{Disk, Io};
use store::{Embedded, EmbeddedOptions, Expect, Op, Outcome, RangeRequest, Revision, Store, StoreError, Txn};

/// A disk that fails on demand.
#[derive(Default)]
pub struct Faulty {
    full: AtomicBool,
    sync_fails: AtomicBool,
    /// Opening fails for lack of descriptors.
    no_descriptors: AtomicBool,
    /// Writing the first block of a checkpoint panics.
    checkpoint_panics: AtomicBool,
}

impl Io for Faulty {
    fn open(&self, path: &Path) -> io::Result<File> {
        if self.no_descriptors.load(Ordering::SeqCst) {
            return Err(rustix::io::Errno::MFILE.into());
        }
        Disk.open(path)
    }

    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        if data.starts_with(b"FERRYCHECKPOINT") && self.checkpoint_panics.swap(false, Ordering::SeqCst) {
            panic!("a bug in a checkpoint");
        }
        if self.full.load(Ordering::SeqCst) {
            // Some of it still fits.
            file.write_all_at(&data[..data.len() / 2], offset)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Disk.write(file, data, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        if self.sync_fails.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(5));
        }
        Disk.sync(file)
    }

    fn allocate(&self, file: &File, length: u64) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Disk.allocate(file, length)
    }
}

fn open(directory: &Path, io: Arc<dyn Io>) -> Result<Embedded, StoreError> {
    let mut options = EmbeddedOptions::new(directory);
    options.io = io;
    Embedded::open(options)
}

async fn put(store: &Embedded, key: &str, value: Vec<u8>) -> Result<Revision, StoreError> {
    let op = Op::Put { value: Bytes::from(value), lease: None };
    match store.txn(Txn { key: key.into(), expect: Expect::Any, op }).await? {
        Outcome::Committed { revision, .. } => Ok(revision),
        Outcome::Conflict { .. } => panic!("unexpected conflict"),
    }
}

/// `key=length` of everything.
async fn contents(store: &Embedded) -> Vec<String> {
    let all = RangeRequest { start: "/".into(), end: "0".into(), ..Default::default() };
    let found = store.range(all).await.unwrap();
    found.kvs.iter().map(|kv| format!("{}={}", kv.key, kv.value.len())).collect()
}

#[tokio::test]
async fn failed_sync_ends_writes_but_not_reads() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Faulty::default());
    let store = open(directory.path(), disk.clone()).unwrap();
    put(&store, "/a", vec![1]).await.unwrap();
    disk.sync_fails.store(true, Ordering::SeqCst);
    let failed = put(&store, "/b", vec![1]).await;
    assert!(matches!(failed, Err(StoreError::Poisoned { .. })), "{failed:?}");
    disk.sync_fails.store(false, Ordering::SeqCst);
    let after = put(&store, "/c", vec![1]).await;
    assert!(matches!(after, Err(StoreError::Poisoned { .. })), "{after:?}");
    assert!(matches!(
        store.grant_lease(std::time::Duration::from_secs(9)).await,
        Err(StoreError::Poisoned { .. })
    ));
    assert_eq!(contents(&store).await, ["/a=1"]);
    assert_eq!(store.revision(), 2);
    drop(store);
    let store = open(directory.path(), disk).unwrap();
    // The write with unknown outcome may exist; acknowledged writes must, rejected ones must not.
    let found = contents(&store).await;
    assert!(found == ["/a=1"] || found == ["/a=1", "/b=1"], "{found:?}");
    put(&store, "/c", vec![1]).await.unwrap();
}

#[tokio::test]
async fn full_disk_rejects_writes_until_space_is_freed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Faulty::default());
    let store = open(directory.path(), disk.clone()).unwrap();
    let first = put(&store, "/a", vec![1; 10_000]).await.unwrap();
    disk.full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let failed = put(&store, "/a", vec![1; 50_000]).await;
        assert!(matches!(failed, Err(StoreError::NoSpace)), "{failed:?}");
    }
    assert_eq!(contents(&store).await, ["/a=10000"]);
    disk.full.store(false, Ordering::SeqCst);
    assert_eq!(put(&store, "/b", vec![1; 100]).await.unwrap(), first + 1);
    // The same when a new segment is required: the first one holds 8 MiB.
    for nth in 0..7 {
        put(&store, "/big", vec![nth; 1 << 20]).await.unwrap();
    }
    disk.full.store(true, Ordering::SeqCst);
    let failed = put(&store, "/big", vec![1; 1 << 20]).await;
    assert!(matches!(failed, Err(StoreError::NoSpace)), "{failed:?}");
    disk.full.store(false, Ordering::SeqCst);
    let last = put(&store, "/c", vec![1; 1 << 20]).await.unwrap();
    assert_eq!(last, first + 9);
    drop(store);
    let store = open(directory.path(), disk).unwrap();
    assert_eq!(store.revision(), last);
    assert_eq!(contents(&store).await, ["/a=10000", "/b=100", "/big=1048576", "/c=1048576"]);
}

/// A small file system, unmounted with the test.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=20m", "tmpfs"]).arg(at).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn full_file_system_rejects_writes_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let Some(_mounted) = Tmpfs::mount(directory.path()) else {
        println!("skipped: cannot mount a file system");
        return;
    };
    let ballast = directory.path().join("ballast");
    fs::write(&ballast, vec![0; 9 << 20]).unwrap();
    let store = open(&directory.path().join("store"), Arc::new(Disk)).unwrap();
    let mut last = 0;
    let error = loop {
        match put(&store, "/a", vec![7; 500_000]).await {
            Ok(revision) => last = revision,
            Err(error) => break error,
        }
        assert!(last < 100, "the disk never fills up");
    };
    assert!(matches!(error, StoreError::NoSpace), "{error:?}");
    assert_eq!(contents(&store).await, ["/a=500000"]);
    fs::remove_file(&ballast).unwrap();
    assert_eq!(put(&store, "/b", vec![7; 500_000]).await.unwrap(), last + 1);
    drop(store);
    let store = open(&directory.path().join("store"), Arc::new(Disk)).unwrap();
    assert_eq!((store.revision(), contents(&store).await.len()), (last + 1, 2));
}

/// The only segment of a small store.
fn segment(directory: &Path) -> PathBuf {
    directory.join("0000000000000001.log")
}

/// Bytes up to the last that is not zero.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// A log of writes to keys `/0`, `/1`, … as a crash would leave it, and the offset after each write.
async fn crashed_log(writes: usize) -> (Vec<u8>, Vec<usize>) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), Arc::new(Disk)).unwrap();
    let mut ends = Vec::new();
    let mut bytes = Vec::new();
    for nth in 0..writes {
        put(&store, &format!("/{nth}"), vec![0xff; nth + 3]).await.unwrap();
        bytes = fs::read(segment(directory.path())).unwrap();
        ends.push(used(&bytes));
    }
    bytes.truncate(used(&bytes));
    (bytes, ends)
}

async fn reopen(bytes: &[u8]) -> Result<Vec<String>, StoreError> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(segment(directory.path()), bytes).unwrap();
    // Segments have their full length from the start.
    File::options().write(true).open(segment(directory.path())).unwrap().set_len(8 << 20).unwrap();
    let store = open(directory.path(), Arc::new(Disk))?;
    let found = contents(&store).await;
    assert_eq!(store.revision(), 1 + found.len() as u64);
    // Writes continue from there.
    assert_eq!(put(&store, "/z", vec![1]).await.unwrap(), 2 + found.len() as u64);
    drop(store);
    let again = open(directory.path(), Arc::new(Disk))?;
    assert_eq!(contents(&again).await.len(), found.len() + 1);
    Ok(found)
}

#[tokio::test]
async fn log_truncated_anywhere_recovers_the_prefix() {
    let (bytes, ends) = crashed_log(6).await;
    let expected = |cut: usize| ends.iter().filter(|end| **end <= cut).count();
    for cut in ends[2]..=bytes.len() {
        let found = reopen(&bytes[..cut]).await.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(found.len(), expected(cut), "cut at {cut}");
    }
    // The end of the last write reached the disk, its beginning did not; or the other way round.
    for hole in ends[4]..bytes.len() {
        let mut torn = bytes.clone();
        torn[ends[4]..hole].fill(0);
        let found = reopen(&torn).await.unwrap_or_else(|error| panic!("hole up to {hole}: {error}"));
        assert!(found.len() == 5 || torn == bytes, "hole up to {hole}");
    }
}

#[tokio::test]
async fn flipped_bit_in_any_file_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), Arc::new(Disk)).unwrap();
    for nth in 0..4 {
        put(&store, &format!("/{nth}"), vec![0xff; nth + 3]).await.unwrap();
    }
    let before = used(&fs::read(segment(directory.path())).unwrap());
    store.close().await;
    let mut bytes = fs::read(segment(directory.path())).unwrap();
    bytes.truncate(used(&bytes));
    let mut noticed = 0;
    for position in 0..before {
        let mut flipped = bytes.clone();
        flipped[position] ^= 1 << (position % 8);
        match reopen(&flipped).await {
            Err(StoreError::Corrupt { .. }) => noticed += 1,
            // A byte without meaning: reserved or padding.
            Ok(found) => assert_eq!(found.len(), 4, "flip at {position}"),
            Err(error) => panic!("flip at {position}: {error}"),
        }
    }
    assert!(noticed > before * 8 / 10, "{noticed} of {before}");
}

#[tokio::test]
async fn damaged_or_missing_file_is_named_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), Arc::new(Disk)).unwrap();
    for nth in 0..20 {
        put(&store, "/a", vec![nth; 1 << 20]).await.unwrap();
    }
    let snapshot = directory.path().join("saved");
    let revision = store.snapshot(&snapshot).await.unwrap();
    store.close().await;
    drop(store);
    // A segment of three is missing.
    let (second, aside) = (directory.path().join("0000000000000002.log"), directory.path().join("aside"));
    fs::rename(&second, &aside).unwrap();
    let result = open(directory.path(), Arc::new(Disk)).map(|_| ());
    assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{result:?}");
    // The end of a segment that is not the last one is missing.
    let bytes = fs::read(&aside).unwrap();
    fs::write(&second, &bytes[..4 << 20]).unwrap();
    let result = open(directory.path(), Arc::new(Disk)).map(|_| ());
    assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{result:?}");
    fs::write(&second, &bytes).unwrap();
    assert_eq!(open(directory.path(), Arc::new(Disk)).unwrap().revision(), revision);

    // A damaged snapshot is not restored, and a damaged checkpoint not opened.
    let good = fs::read(&snapshot).unwrap();
    for position in (0..good.len()).step_by(good.len() / 50) {
        let mut flipped = good.clone();
        flipped[position] ^= 4;
        fs::write(&snapshot, &flipped).unwrap();
        let restored = tempfile::tempdir().unwrap();
        let result = Embedded::restore(&snapshot, restored.path(), 0);
        assert!(matches!(result, Err(StoreError::Corrupt { .. })), "flip at {position}: {result:?}");
    }
    for length in [0, 10, 100, good.len() / 2, good.len() - 1] {
        fs::write(&snapshot, &good[..length]).unwrap();
        let restored = tempfile::tempdir().unwrap();
        let result = Embedded::restore(&snapshot, restored.path(), 0);
        assert!(matches!(result, Err(StoreError::Corrupt { .. })), "cut at {length}: {result:?}");
    }
}

#[tokio::test]
async fn failed_store_reports_the_disk_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Faulty::default());
    let store = open(directory.path(), disk.clone()).unwrap();
    put(&store, "/a", vec![1]).await.unwrap();
    assert_eq!(store.health().failure, None);
    disk.sync_fails.store(true, Ordering::SeqCst);
    put(&store, "/b", vec![1]).await.unwrap_err();
    let failure = store.health().failure.expect("a failure");
    assert!(failure.contains(&directory.path().display().to_string()), "{failure}");
    assert!(failure.contains("check the disk") && failure.contains("restart ferry"), "{failure}");
    drop(store);

    let store = open(directory.path(), Arc::new(Disk)).unwrap();
    assert_eq!(store.health().failure, None);
    store.close().await;
    assert!(store.health().failure.is_some_and(|failure| failure.contains("the store is closed")));
}

#[tokio::test]
async fn new_segment_without_descriptors_is_retried() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Faulty::default());
    let store = open(directory.path(), disk.clone()).unwrap();
    disk.no_descriptors.store(true, Ordering::SeqCst);
    let mut written = 0;
    let refused = loop {
        match put(&store, &format!("/{written}"), vec![1; 1 << 20]).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 20, "no new segment was needed");
    };
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused:?}");
    assert_eq!(store.health().failure, None);
    disk.no_descriptors.store(false, Ordering::SeqCst);
    put(&store, "/z", vec![1; 1 << 20]).await.unwrap();
    drop(store);
    assert_eq!(contents(&open(directory.path(), disk).unwrap()).await.len(), written + 1);
}

#[tokio::test]
async fn missing_or_truncated_last_segment_fails_the_open() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), Arc::new(Disk)).unwrap();
    for nth in 0..20 {
        put(&store, &format!("/{nth:02}"), vec![nth; 1 << 20]).await.unwrap();
    }
    drop(store);
    let mut logs: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    let last = logs.last().unwrap();
    let bytes = fs::read(last).unwrap();
    let reopened = || open(directory.path(), Arc::new(Disk)).map(drop).expect_err("refused").to_string();

    fs::remove_file(last).unwrap();
    let error = reopened();
    assert!(error.contains(&last.display().to_string()) && error.contains("missing"), "{error}");
    for length in [0, 1 << 20, bytes.len() - 1] {
        fs::write(last, &bytes[..length]).unwrap();
        let error = reopened();
        assert!(error.contains(&format!("{length} bytes, expected")), "{error}");
    }
    fs::write(last, &bytes).unwrap();
    assert_eq!(contents(&open(directory.path(), Arc::new(Disk)).unwrap()).await.len(), 20);
}

#[tokio::test]
async fn panic_in_a_checkpoint_does_not_end_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Faulty::default());
    let mut options = EmbeddedOptions::new(directory.path());
    options.io = disk.clone();
    options.checkpoint_bytes = 1 << 20;
    let store = Embedded::open(options).unwrap();
    disk.checkpoint_panics.store(true, Ordering::SeqCst);
    let has_checkpoint = || {
        let mut entries = fs::read_dir(directory.path()).unwrap();
        entries.any(|entry| entry.unwrap().path().extension().is_some_and(|found| found == "checkpoint"))
    };
    // The panic is reported while writes continue, which may take longer than many of them.
    for _ in 0..2000 {
        put(&store, "/a", vec![1; 500_000]).await.unwrap();
        if has_checkpoint() {
            break;
        }
    }
    store.close().await;
    assert!(!disk.checkpoint_panics.load(Ordering::SeqCst), "there was no checkpoint");
    assert!(has_checkpoint(), "there was no second checkpoint");
}

#[tokio::test]
async fn store_at_its_size_limit_accepts_deletes_only() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = EmbeddedOptions::new(directory.path());
    options.quota_bytes = 1 << 20;
    let store = Embedded::open(options.clone()).unwrap();
    for nth in 0..10 {
        put(&store, &format!("/{nth}"), vec![1; 100_000]).await.unwrap();
    }
    // Replacing a value counts the difference in size.
    put(&store, "/0", vec![2; 100_000]).await.unwrap();
    let refused = put(&store, "/z", vec![1; 100_000]).await.unwrap_err();
    assert!(matches!(refused, StoreError::QuotaExceeded), "{refused:?}");
    assert_eq!(refused.to_string(), "etcdserver: mvcc: database space exceeded");
    assert!(put(&store, "/y", vec![1]).await.is_err(), "the alarm refuses every put");
    let health = store.health();
    assert!(health.quota_exceeded && health.failure.is_none());
    assert_eq!((health.size_bytes, health.quota_bytes), (Some(10 * 100_002), Some(1 << 20)));
    drop(store);

    // The size is correct after a restart, too.
    let store = Embedded::open(options).unwrap();
    assert_eq!(store.health().size_bytes, Some(10 * 100_002));
    assert!(put(&store, "/z", vec![1; 100_000]).await.is_err());
    let delete = Txn { key: "/0".into(), expect: Expect::Any, op: Op::Delete };
    assert!(matches!(store.txn(delete).await, Ok(Outcome::Committed { .. })));
    put(&store, "/z", vec![1; 90_000]).await.unwrap();
    assert!(!store.health().quota_exceeded);
}
