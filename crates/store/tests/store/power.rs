//! The embedded backend after a power cut: any part of the unsynced data may have reached the disk.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use store::embedded::{Disk, Io};
use store::{Embedded, EmbeddedOptions, Expect, Op, Outcome, RangeRequest, Store, Txn};

/// A disk writes whole sectors, in any order until a sync.
const SECTOR: u64 = 512;
const CUTS: usize = 12;

/// A disk that occasionally, during a sync, saves the state that a power cut would leave at that moment.
struct Cuttable {
    directory: PathBuf,
    aside: PathBuf,
    state: Mutex<State>,
    /// Last write acknowledged as durable.
    acknowledged: AtomicU64,
}

struct State {
    random: SmallRng,
    /// Unsynced overwritten data by inode: offset and previous contents.
    unsynced: HashMap<u64, Vec<(u64, Vec<u8>)>>,
    /// Saved directories, with the last write acknowledged at that time.
    cuts: Vec<(PathBuf, u64)>,
}

impl Cuttable {
    /// Copies the directory; each sector that is not yet durable randomly has its old or its new contents.
    fn cut(&self, state: &mut State) {
        let copy = self.aside.join(state.cuts.len().to_string());
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(&self.directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == "lock" {
                continue;
            }
            let mut bytes = fs::read(entry.path()).unwrap();
            let unsynced = state.unsynced.get(&entry.metadata().unwrap().ino());
            // Latest first: the oldest overwritten contents are those on the disk.
            for (offset, before) in unsynced.into_iter().flatten().rev() {
                let mut at = *offset;
                let end = offset + before.len() as u64;
                while at < end {
                    let sector = at / SECTOR;
                    let next = end.min((sector + 1) * SECTOR);
                    let chance = sector ^ (state.cuts.len() as u64) << 32;
                    if SmallRng::seed_from_u64(chance).random_bool(0.5) {
                        let old = &before[(at - offset) as usize..(next - offset) as usize];
                        bytes[at as usize..next as usize].copy_from_slice(old);
                    }
                    at = next;
                }
            }
            fs::write(copy.join(entry.file_name()), bytes).unwrap();
        }
        state.cuts.push((copy, self.acknowledged.load(Ordering::SeqCst)));
    }
}

impl Io for Cuttable {
    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        let mut before = vec![0; data.len()];
        // Data beyond the end of the file reads as zeros.
        let mut read = 0;
        while read < before.len() {
            match file.read_at(&mut before[read..], offset + read as u64)? {
                0 => break,
                more => read += more,
            }
        }
        self.state.lock().unsynced.entry(file.metadata()?.ino()).or_default().push((offset, before));
        Disk.write(file, data, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let mut state = self.state.lock();
        let inode = file.metadata()?.ino();
        let due = state.unsynced.contains_key(&inode) && state.random.random_bool(0.3);
        if due && state.cuts.len() < CUTS {
            self.cut(&mut state);
        }
        state.unsynced.remove(&inode);
        Disk.sync(file)
    }

    fn allocate(&self, file: &File, length: u64) -> io::Result<()> {
        Disk.allocate(file, length)
    }
}

fn open(directory: &Path, io: Arc<dyn Io>) -> Embedded {
    let mut options = EmbeddedOptions::new(directory);
    options.io = io;
    Embedded::open(options).unwrap()
}

async fn put(store: &Embedded, number: u64, length: usize) {
    let op = Op::Put { value: Bytes::from(vec![number as u8; length]), lease: None };
    let txn = Txn { key: format!("/{number:06}").into(), expect: Expect::Absent, op };
    assert!(matches!(store.txn(txn).await, Ok(Outcome::Committed { .. })));
}

/// Number of writes found: consecutive from the first on, each complete.
async fn present(store: &Embedded) -> u64 {
    let all = RangeRequest { start: "/".into(), end: "0".into(), ..Default::default() };
    let found = store.range(all).await.unwrap();
    for (number, kv) in (1u64..).zip(&found.kvs) {
        assert_eq!(*kv.key, *format!("/{number:06}"));
        assert!(kv.value.iter().all(|byte| *byte == number as u8), "{}", kv.key);
    }
    found.kvs.len() as u64
}

#[tokio::test]
async fn power_cut_loses_no_acknowledged_write() {
    let (directory, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = Arc::new(Cuttable {
        directory: directory.path().to_owned(),
        aside: aside.path().to_owned(),
        state: Mutex::new(State {
            random: SmallRng::seed_from_u64(7),
            unsynced: HashMap::new(),
            cuts: Vec::new(),
        }),
        acknowledged: AtomicU64::new(0),
    });
    let store = open(directory.path(), disk.clone());
    let mut lengths = SmallRng::seed_from_u64(11);
    for number in 1..=400 {
        put(&store, number, lengths.random_range(1..6000)).await;
        disk.acknowledged.store(number, Ordering::SeqCst);
    }
    drop(store);
    let cuts = std::mem::take(&mut disk.state.lock().cuts);
    assert_eq!(cuts.len(), CUTS);
    for (directory, acknowledged) in cuts {
        let store = open(&directory, Arc::new(Disk));
        let found = present(&store).await;
        assert!(found == acknowledged || found == acknowledged + 1, "{found} of {acknowledged} are there");
        // Writes continue from there, also after another start.
        put(&store, found + 1, 5000).await;
        drop(store);
        assert_eq!(present(&open(&directory, Arc::new(Disk))).await, found + 1);
        fs::remove_dir_all(directory).unwrap();
    }
}

/// A disk whose failed syncs mark pages clean, as Linux does: their data reaches the disk only if it is written again.
struct Forgetful {
    state: Mutex<Durable>,
    sync_fails: AtomicBool,
}

#[derive(Default)]
struct Durable {
    /// Durable contents by inode.
    files: HashMap<u64, Vec<u8>>,
    /// Contents by inode that are in the page cache only.
    dirty: HashMap<u64, Vec<(u64, usize)>>,
}

impl Forgetful {
    /// Reduces the directory to what is on the disk.
    fn cut(&self, directory: &Path) {
        let state = self.state.lock();
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if let Some(bytes) = state.files.get(&entry.metadata().unwrap().ino()) {
                fs::write(entry.path(), bytes).unwrap();
            }
        }
    }
}

impl Io for Forgetful {
    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        self.state.lock().dirty.entry(file.metadata()?.ino()).or_default().push((offset, data.len()));
        Disk.write(file, data, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let mut state = self.state.lock();
        let inode = file.metadata()?.ino();
        let dirty = state.dirty.remove(&inode).unwrap_or_default();
        if self.sync_fails.load(Ordering::SeqCst) {
            return Err(rustix::io::Errno::IO.into());
        }
        for (offset, length) in dirty {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset)?;
            let durable = state.files.entry(inode).or_default();
            let end = offset as usize + length;
            if durable.len() < end {
                durable.resize(end, 0);
            }
            durable[offset as usize..end].copy_from_slice(&bytes);
        }
        Disk.sync(file)
    }

    fn allocate(&self, file: &File, length: u64) -> io::Result<()> {
        self.state.lock().files.entry(file.metadata()?.ino()).or_default().resize(length as usize, 0);
        Disk.allocate(file, length)
    }
}

#[tokio::test]
async fn frame_of_a_failed_sync_is_durable_after_the_restart() {
    let directory = tempfile::tempdir().unwrap();
    let disk =
        Arc::new(Forgetful { state: Mutex::new(Durable::default()), sync_fails: AtomicBool::new(false) });
    let store = open(directory.path(), disk.clone());
    for number in 1..=5 {
        put(&store, number, 3000).await;
    }
    disk.sync_fails.store(true, Ordering::SeqCst);
    let op = Op::Put { value: Bytes::from(vec![6; 3000]), lease: None };
    store.txn(Txn { key: "/000006".into(), expect: Expect::Absent, op }).await.unwrap_err();
    disk.sync_fails.store(false, Ordering::SeqCst);
    drop(store);

    // The restart reads the page cache and continues from it.
    let store = open(directory.path(), disk.clone());
    let found = present(&store).await;
    assert!(found == 5 || found == 6, "{found}");
    for number in found + 1..=found + 5 {
        put(&store, number, 3000).await;
    }
    drop(store);
    disk.cut(directory.path());
    assert_eq!(present(&open(directory.path(), Arc::new(Disk))).await, found + 5);
}

/// A disk that checks each spare segment: its name must have been made durable before it is written to.
#[derive(Default)]
struct Watchful {
    durable: Mutex<HashSet<PathBuf>>,
    reused: AtomicU64,
    early: AtomicU64,
}

impl Io for Watchful {
    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let is_spare = path.extension().is_some_and(|extension| extension == "spare");
        // A segment that was never used holds zeros.
        let mut old = [0; 8];
        if is_spare && offset == 0 && file.read_at(&mut old, 0)? == 8 && &old == b"FERRYLOG" {
            self.reused.fetch_add(1, Ordering::SeqCst);
            if !self.durable.lock().contains(&path) {
                self.early.fetch_add(1, Ordering::SeqCst);
            }
        }
        Disk.write(file, data, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        if file.metadata()?.is_dir() {
            let directory = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            *self.durable.lock() =
                fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        }
        Disk.sync(file)
    }

    fn allocate(&self, file: &File, length: u64) -> io::Result<()> {
        Disk.allocate(file, length)
    }
}

#[tokio::test]
async fn spare_segment_is_reused_after_its_name_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watchful::default());
    let mut options = EmbeddedOptions::new(directory.path());
    (options.io, options.checkpoint_bytes) = (disk.clone(), 1 << 20);
    let store = Embedded::open(options).unwrap();
    for _ in 0..120 {
        let op = Op::Put { value: Bytes::from(vec![1; 500_000]), lease: None };
        store.txn(Txn { key: "/a".into(), expect: Expect::Any, op }).await.unwrap();
    }
    store.close().await;
    assert!(disk.reused.load(Ordering::SeqCst) > 0, "spares are used");
    assert_eq!(disk.early.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn superfluous_segment_with_another_header_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = EmbeddedOptions::new(directory.path());
    options.checkpoint_bytes = 1 << 20;
    let store = Embedded::open(options).unwrap();
    for number in 1..=120 {
        let op = Op::Put { value: Bytes::from(vec![number; 500_000]), lease: None };
        store.txn(Txn { key: "/000001".into(), expect: Expect::Any, op }).await.unwrap();
    }
    let revision = store.revision();
    store.close().await;
    drop(store);
    let first = directory.path().join("0000000000000001.log");
    assert!(!first.exists(), "a checkpoint has released it");
    let last = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let last = last.filter(|path| path.extension().is_some_and(|found| found == "log")).max().unwrap();
    // A power cut before a rename was durable: the old name with the contents of a later segment.
    fs::copy(last, &first).unwrap();
    assert_eq!(open(directory.path(), Arc::new(Disk)).revision(), revision);
}
