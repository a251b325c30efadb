//! Checkpoints: the whole state in one file, the starting point of recovery and the format of snapshots.
//!
//! A file is a magic number and blocks of items, each block with a checksum that covers its position in the sequence;
//! the last item is the number of items. The file is renamed to its final name once it is durable. History contains
//! only replaced values; the values that changes introduced are reconstructed by walking backwards from the current
//! ones.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::io::{Io, is_full};
use super::log::sync_directory;
use super::record::{Reader, put_bytes, put_u64};
use super::state::State;
use crate::contract::{Event, KeyValue, LeaseId, Revision};
use crate::error::{Result, StoreError};

const MAGIC: &[u8; 16] = b"FERRYCHECKPOINT1";
/// Blocks are written when they reach this size.
const BLOCK: usize = 256 << 10;
/// Upper bound of a block: a full one plus the largest item.
const LARGEST_BLOCK: u32 = 64 << 20;

const META: u8 = 1;
const LEASE: u8 = 2;
const ENTRY: u8 = 3;
const PUT: u8 = 4;
const DELETE: u8 = 5;
const END: u8 = 6;

/// A state frozen for writing: keys and values are shared with the store, not copied.
pub(super) struct Frozen {
    pub revision: Revision,
    pub compacted: Revision,
    pub index: u64,
    leases: Vec<(LeaseId, Duration)>,
    entries: Vec<(KeyValue, Option<LeaseId>)>,
    history: Vec<(Event, u64)>,
}

impl Frozen {
    pub fn of(state: &State) -> Self {
        let entries = state.current.values().map(|kv| (kv.clone(), state.leases.of(&kv.key)));
        Self {
            revision: state.revision,
            compacted: state.history.compacted(),
            index: state.index,
            leases: state.leases.iter().map(|(id, lease)| (id, lease.ttl)).collect(),
            entries: entries.collect(),
            history: state.history.entries().map(|entry| (entry.event.clone(), entry.at)).collect(),
        }
    }

    /// For a restored cluster: skips revisions that the old cluster may have used after the snapshot, and compacts,
    /// so that no client resumes from an earlier revision.
    pub fn skip_revisions(&mut self, revisions: u64) {
        self.revision += revisions;
        if revisions > 0 {
            self.compacted = self.revision;
            self.history.clear();
        }
    }

    /// Writes a temporary file, makes it durable and renames it; returns its size. A `standalone` file is a whole
    /// store, others require the log that follows them. Values are dropped as soon as they are written, because the
    /// store may have replaced them.
    pub fn write(self, io: &dyn Io, path: &Path, standalone: bool) -> Result<u64> {
        let unnamed = path.with_extension("tmp");
        let result = self.write_file(io, &unnamed, standalone).and_then(|size| {
            fs::rename(&unnamed, path).map_err(StoreError::io("rename", &unnamed))?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            sync_directory(io, parent).map_err(StoreError::io("sync", parent))?;
            Ok(size)
        });
        if result.is_err() {
            let _ = fs::remove_file(&unnamed);
        }
        result
    }

    fn write_file(self, io: &dyn Io, path: &Path, standalone: bool) -> Result<u64> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(StoreError::io("create", path))?;
        let mut out = Writer { io, path, file: &file, block: Vec::new(), offset: 0, blocks: 0 };
        out.raw(MAGIC)?;
        out.item(|out| {
            out.push(META);
            put_u64(out, self.revision);
            put_u64(out, self.compacted);
            put_u64(out, self.index);
            out.push(u8::from(standalone));
        })?;
        for (id, ttl) in &self.leases {
            out.item(|out| {
                out.push(LEASE);
                put_u64(out, id.0 as u64);
                put_u64(out, ttl.as_millis() as u64);
            })?;
        }
        let counts = (self.entries.len() as u64, self.history.len() as u64);
        for (kv, lease) in self.entries {
            out.item(|out| {
                out.push(ENTRY);
                put_u64(out, lease.map_or(0, |id| id.0 as u64));
                put_bytes(out, kv.key.as_bytes());
                put_kv(out, &kv);
            })?;
        }
        for (event, at) in self.history {
            out.item(|out| {
                out.push(if matches!(event, Event::Put { .. }) { PUT } else { DELETE });
                put_u64(out, at);
                put_u64(out, event.revision());
                put_bytes(out, event.key().as_bytes());
                out.push(u8::from(event.prev().is_some()));
                event.prev().into_iter().for_each(|kv| put_kv(out, kv));
            })?;
        }
        out.item(|out| {
            out.push(END);
            put_u64(out, counts.0);
            put_u64(out, counts.1);
        })?;
        out.flush()?;
        let size = out.offset;
        io.sync(&file).map_err(StoreError::io("sync", path))?;
        Ok(size)
    }
}

fn put_kv(out: &mut Vec<u8>, kv: &KeyValue) {
    put_u64(out, kv.create_revision);
    put_u64(out, kv.mod_revision);
    put_u64(out, kv.version);
    put_bytes(out, &kv.value);
}

struct Writer<'a> {
    io: &'a dyn Io,
    path: &'a Path,
    file: &'a File,
    block: Vec<u8>,
    offset: u64,
    blocks: u64,
}

impl Writer<'_> {
    fn item(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        encode(&mut self.block);
        if self.block.len() >= BLOCK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let block = std::mem::take(&mut self.block);
        let mut header = [0; 8];
        header[..4].copy_from_slice(&(block.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&block_crc(self.blocks, &block).to_le_bytes());
        self.raw(&header)?;
        self.raw(&block)?;
        self.blocks += 1;
        self.block = block;
        self.block.clear();
        Ok(())
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.io.write(self.file, bytes, self.offset).map_err(|error| {
            if is_full(&error) { StoreError::NoSpace } else { StoreError::io("write", self.path)(error) }
        })?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

fn block_crc(number: u64, block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), block)
}

/// A state read back.
pub(super) struct Loaded {
    pub state: State,
    pub standalone: bool,
    pub size: u64,
}

/// Reads a checkpoint, trusting nothing in it that its checksums do not cover.
pub(super) fn load(path: &Path, now: Instant) -> Result<Loaded> {
    let mut file = File::open(path).map_err(StoreError::io("open", path))?;
    let size = file.metadata().map_err(StoreError::io("inspect", path))?.len();
    let mut magic = [0; MAGIC.len()];
    let sound = file.read_exact(&mut magic).is_ok() && magic == *MAGIC;
    if !sound {
        return Err(StoreError::corrupt(path, "this is not a checkpoint"));
    }
    let mut loader = Loader { now, meta: None, state: State::empty(), history: Vec::new(), ended: false };
    let mut block = Vec::new();
    let mut number = 0;
    while !loader.ended {
        let damaged = || StoreError::corrupt(path, format!("block {number} of the checkpoint is damaged"));
        let mut header = [0; 8];
        file.read_exact(&mut header).map_err(|_| damaged())?;
        let mut reader = Reader(&header);
        let length = reader.u32().filter(|length| *length <= LARGEST_BLOCK).ok_or_else(damaged)?;
        let crc = reader.u32().ok_or_else(damaged)?;
        block.resize(length as usize, 0);
        file.read_exact(&mut block).map_err(|_| damaged())?;
        if block_crc(number, &block) != crc {
            return Err(damaged());
        }
        let mut items = Reader(&block);
        while !items.is_empty() {
            loader.item(&mut items).ok_or_else(damaged)?;
        }
        number += 1;
    }
    let mut loaded = loader.finish().ok_or_else(|| StoreError::corrupt(path, "inconsistent history"))?;
    loaded.size = size;
    Ok(loaded)
}

struct Loader {
    now: Instant,
    meta: Option<bool>,
    state: State,
    history: Vec<Replaced>,
    ended: bool,
}

/// A change of which only the replaced value is stored.
struct Replaced {
    put: bool,
    at: u64,
    revision: Revision,
    key: Arc<str>,
    prev: Option<KeyValue>,
}

impl Loader {
    fn item(&mut self, input: &mut Reader<'_>) -> Option<()> {
        let tag = input.u8()?;
        if self.ended || (tag == META) == self.meta.is_some() {
            return None;
        }
        match tag {
            META => {
                self.state = State::at(input.u64()?, input.u64()?, input.u64()?);
                self.meta = Some(input.u8()? != 0);
            }
            LEASE => {
                let id = LeaseId(input.u64()? as i64);
                self.state.leases.grant(id, Duration::from_millis(input.u64()?), self.now);
            }
            ENTRY => {
                let lease = input.lease()?;
                let key = input.owned_key()?;
                let kv = read_kv(input, key)?;
                self.state.leases.attach(&kv.key, lease);
                self.state.insert(kv);
            }
            PUT | DELETE => {
                let (at, revision, key) = (input.u64()?, input.u64()?, input.str()?);
                let current = self.state.current.get_key_value(key);
                let key = current.map_or_else(|| Arc::from(key), |(key, _)| key.clone());
                let prev = if input.u8()? != 0 { Some(read_kv(input, key.clone())?) } else { None };
                self.history.push(Replaced { put: tag == PUT, at, revision, key, prev });
            }
            END => {
                let counts = (self.state.current.len() as u64, self.history.len() as u64);
                self.ended = (input.u64()?, input.u64()?) == counts;
                return self.ended.then_some(());
            }
            _ => return None,
        }
        Some(())
    }

    /// Walks the history backwards: the value a change introduced is the one that the next change of
    /// the key replaced, or the current one.
    fn finish(mut self) -> Option<Loaded> {
        let mut later: HashMap<Arc<str>, Option<KeyValue>> = HashMap::new();
        let mut events = Vec::with_capacity(self.history.len());
        for Replaced { put, at, revision, key, prev } in self.history.drain(..).rev() {
            let after = later
                .insert(key.clone(), prev.clone())
                .unwrap_or_else(|| self.state.current.get(&key).cloned());
            let event = match after {
                Some(kv) if put && kv.mod_revision == revision => Event::Put { kv, prev },
                None if !put => Event::Delete { key, revision, prev },
                _ => return None,
            };
            events.push((event, at));
        }
        for (event, at) in events.into_iter().rev() {
            self.state.history.push(event, at);
        }
        Some(Loaded { state: self.state, standalone: self.meta?, size: 0 })
    }
}

fn read_kv(input: &mut Reader<'_>, key: Arc<str>) -> Option<KeyValue> {
    let (create_revision, mod_revision, version) = (input.u64()?, input.u64()?, input.u64()?);
    Some(KeyValue { key, value: input.owned_value()?, create_revision, mod_revision, version })
}
