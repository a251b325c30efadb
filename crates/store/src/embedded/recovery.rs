//! Opening a data directory: the newest sound checkpoint, then the log after it.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::FlockOperation;

use super::EmbeddedOptions;
use super::checkpoint::{self, Loaded};
use super::log::{Log, Segment, segment_path};
use super::record::{Reader, Record};
use super::state::{PendingChange, State};
use crate::contract::{Op, Revision};
use crate::error::{Result, StoreError};

/// A recovered store.
pub(super) struct Recovered {
    pub state: State,
    pub journal: Journal,
}

/// Initial state of the commit thread.
pub(super) struct Journal {
    pub log: Log,
    pub lock: Lock,
    /// Size of the checkpoint that recovery started from.
    pub checkpoint_bytes: u64,
    /// Bytes of log that had to be replayed.
    pub log_bytes: u64,
}

/// Files of a data directory, by kind; numbers ascending.
#[derive(Default)]
struct Files {
    checkpoints: Vec<(u64, PathBuf)>,
    segments: Vec<(u64, PathBuf)>,
    spares: Vec<PathBuf>,
}

/// Path of a checkpoint.
pub(super) fn checkpoint_path(directory: &Path, index: u64) -> PathBuf {
    directory.join(format!("{index:016x}.checkpoint"))
}

/// Exclusive lock of the directory, released on drop.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process being started may still hold a copy of the descriptor.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Locks the directory for this process.
pub(super) fn lock(directory: &Path) -> Result<Lock> {
    let path = directory.join("lock");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(StoreError::io("open", &path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { path: directory.to_owned() }),
        Err(errno) => Err(StoreError::io("lock", path)(errno.into())),
    }
}

/// True if the directory contains a store.
pub(super) fn is_occupied(directory: &Path) -> Result<bool> {
    let files = list(directory, 0)?;
    Ok(!files.checkpoints.is_empty() || !files.segments.is_empty())
}

fn list(directory: &Path, segment_bytes: u64) -> Result<Files> {
    let mut files = Files::default();
    let failed = || StoreError::io("list", directory);
    for entry in fs::read_dir(directory).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let path = entry.path();
        let number =
            path.file_stem().and_then(|stem| stem.to_str()).and_then(|s| u64::from_str_radix(s, 16).ok());
        match (path.extension().and_then(|ext| ext.to_str()), number) {
            (Some("log"), Some(number)) => files.segments.push((number, path)),
            (Some("checkpoint"), Some(number)) => files.checkpoints.push((number, path)),
            (Some("spare"), Some(_)) if entry.metadata().is_ok_and(|meta| meta.len() == segment_bytes) => {
                files.spares.push(path);
            }
            // Remove files that a crash left incomplete.
            (Some("spare" | "tmp"), Some(_)) if segment_bytes > 0 => {
                let _ = fs::remove_file(&path);
            }
            _ => {}
        }
    }
    files.segments.sort();
    files.checkpoints.sort();
    Ok(files)
}

/// Creates the directory of a store with access for its owner only, and corrects wider modes. The files in it may
/// have wider modes from an earlier version.
pub(super) fn private_directory(directory: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(StoreError::io("create", directory))?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
        .map_err(StoreError::io("restrict", directory))
}

/// Recovers the store in the directory, or creates a new one.
pub(super) fn recover(options: &EmbeddedOptions) -> Result<Recovered> {
    let directory = &options.directory;
    private_directory(directory)?;
    let lock = lock(directory)?;
    let Files { checkpoints, segments, spares } = list(directory, options.segment_bytes)?;
    let now = Instant::now();
    let Loaded { mut state, standalone, size } = load_newest(&checkpoints, now)?;

    let needed = state.index + 1;
    let mut segments: VecDeque<_> = segments.into();
    let mut finished = VecDeque::new();
    // Segments before the one that continues the checkpoint are not needed and may be damaged: a power cut may have
    // restored the name of a file that was reused.
    let starts = |(number, path): &(u64, PathBuf)| {
        Segment::read_header(path, *number).filter(|header| header.first_index <= needed)
    };
    if let Some((first, header)) =
        segments.iter().enumerate().rev().find_map(|(at, segment)| Some((at, starts(segment)?)))
    {
        finished.extend(segments.drain(..first).map(|(_, path)| (path, header.first_index - 1)));
    }
    let mut log_bytes = 0;
    let mut last: Option<Segment> = None;
    while let Some((number, path)) = segments.pop_front() {
        let segment = Segment::read(path, number)?;
        match last.take() {
            Some(previous) => check_succession(&previous, &segment)?,
            None if segment.header.first_index > needed => {
                let reason = format!("segments from frame {needed} to this one are missing");
                return Err(StoreError::corrupt(segment.path, reason));
            }
            None => {}
        }
        if segments.is_empty()
            && let Some(offset) = segment.scan.damaged
        {
            let reason =
                format!("the frame at byte {} is damaged, and byte {offset} is not", segment.scan.end);
            return Err(StoreError::corrupt(segment.path, reason));
        }
        log_bytes += replay(&segment, &mut state, now)?;
        state.history.trim(0, options.history_bytes);
        if !segments.is_empty() {
            finished.push_back((segment.path.clone(), segment.end_index() - 1));
        }
        last = Some(segment);
    }

    let log = match last {
        Some(segment) => {
            if segment.end_index() < needed {
                let reason = format!("segment ends before frame {needed}, which the checkpoint includes");
                return Err(StoreError::corrupt(segment.path, reason));
            }
            if segment.is_rotated() {
                let next = segment_path(directory, segment.header.number + 1);
                let reason = "the last segments of the log are missing; restore them, or the whole store from a backup";
                return Err(StoreError::corrupt(next, reason));
            }
            if segment.scan.torn {
                tracing::warn!(
                    path = %segment.path.display(), offset = segment.scan.end,
                    "discarded an incomplete, unacknowledged write at the end of the log"
                );
            }
            Log::resume(options.io.clone(), options.segment_bytes, segment, finished, spares)?
        }
        None if standalone || checkpoints.is_empty() => {
            Log::create(directory, options.io.clone(), options.segment_bytes, 1, needed, spares)?
        }
        None => {
            return Err(StoreError::corrupt(
                segment_path(directory, 1),
                "there is a checkpoint, but the log is missing",
            ));
        }
    };
    Ok(Recovered { state, journal: Journal { log, lock, checkpoint_bytes: size, log_bytes } })
}

/// Falls back to an older checkpoint if the newest is damaged, as long as the log reaches back to it.
fn load_newest(checkpoints: &[(u64, PathBuf)], now: Instant) -> Result<Loaded> {
    let mut first_error = None;
    for (_, path) in checkpoints.iter().rev() {
        match checkpoint::load(path, now) {
            Ok(loaded) => return Ok(loaded),
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(%error, "checkpoint is unusable, falling back to the previous one");
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match first_error {
        Some(error) => Err(error),
        None => Ok(Loaded { state: State::empty(), standalone: false, size: 0 }),
    }
}

/// Removes the checkpoints that a newer one has replaced.
pub(super) fn remove_checkpoints_before(directory: &Path, index: u64) {
    let Ok(files) = list(directory, 0) else { return };
    for (_, path) in files.checkpoints.into_iter().filter(|(number, _)| *number < index) {
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "failed to remove an old checkpoint");
        }
    }
}

fn check_succession(previous: &Segment, next: &Segment) -> Result<()> {
    if next.header.number != previous.header.number + 1 {
        let reason = format!("the preceding segment {:016x} is missing", next.header.number - 1);
        return Err(StoreError::corrupt(&next.path, reason));
    }
    if previous.end_index() != next.header.first_index {
        let reason = format!(
            "the frame at byte {} is damaged, and later segments follow ({} frames read, {} expected)",
            previous.scan.end,
            previous.scan.frames.len(),
            next.header.first_index.saturating_sub(previous.header.first_index),
        );
        return Err(StoreError::corrupt(&previous.path, reason));
    }
    Ok(())
}

/// Applies the frames that the state does not include yet; returns their bytes.
fn replay(segment: &Segment, state: &mut State, now: Instant) -> Result<u64> {
    let mut bytes = 0;
    for (nth, range) in segment.scan.frames.iter().enumerate() {
        let index = segment.header.first_index + nth as u64;
        if index <= state.index {
            continue;
        }
        let malformed = || {
            let reason = format!("frame at byte {} has a valid checksum but an invalid record", range.start);
            StoreError::corrupt(&segment.path, reason)
        };
        let mut input = Reader(&segment.bytes[range.clone()]);
        let at = input.u64().ok_or_else(malformed)?;
        while !input.is_empty() {
            let record = Record::decode(&mut input).ok_or_else(malformed)?;
            apply(record, state, at, now).ok_or_else(malformed)?;
        }
        state.index = index;
        bytes += range.len() as u64;
    }
    Ok(bytes)
}

/// Applies the change of a record; `None` if it contradicts the state.
fn apply(record: Record<'_>, state: &mut State, at: u64, now: Instant) -> Option<()> {
    let mut change = |key: &str, revision: Revision, op: Op| {
        let prev = state.current.get(key).cloned();
        let fits = revision == state.revision + 1 && (prev.is_some() || matches!(op, Op::Put { .. }));
        fits.then(|| state.apply(PendingChange::new(Arc::from(key), prev, op, revision), at))
    };
    match record {
        Record::Put { revision, lease, key, value } => {
            let value = Bytes::copy_from_slice(value);
            change(key, revision, Op::Put { value, lease })?;
        }
        Record::Delete { revision, key } => change(key, revision, Op::Delete)?,
        Record::Grant { lease, ttl_ms } => state.leases.grant(lease, Duration::from_millis(ttl_ms), now),
        Record::Revoke { lease } => state.leases.revoke(lease),
        Record::Compact { revision } => state.history.compact(revision),
        Record::Closed => {}
    }
    Some(())
}
