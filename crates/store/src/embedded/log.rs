//! The write-ahead log: appending frames to segments, starting new ones, using old files again.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::io::{Io, is_full};
use super::segment::{FRAME, HEADER, Scan, SegmentHeader, scan};
use crate::error::{Result, StoreError};

/// Old segment files kept for use again: as many as one checkpoint releases. Writing to blocks that
/// were written before is also quicker to sync than writing to freshly allocated ones.
const SPARES: usize = 4;
/// So much of a new segment is filled with zeros ahead of the frames. Blocks that were reserved but never written are
/// dear: each sync has to note that they are in use now, and this way only one of many has to.
const AHEAD: u64 = 256 * 1024;
const ZEROS: usize = 64 * 1024;
/// A buffer larger than this is given back after use.
const BUFFER: usize = 1 << 20;

/// Why a frame was not appended.
#[derive(Debug)]
pub(super) enum AppendError {
    /// The disk is full; the log is as it was and appending may be tried again.
    Full,
    /// It is not known what is on the disk.
    Failed { operation: &'static str, path: PathBuf, source: io::Error },
}

/// The log, open for appending.
pub(super) struct Log {
    directory: PathBuf,
    io: Arc<dyn Io>,
    segment_bytes: u64,
    active: Active,
    /// Index of the last frame.
    index: u64,
    /// Finished segments with the index of their last frame, oldest first.
    finished: VecDeque<(PathBuf, u64)>,
    spares: Vec<PathBuf>,
    buffer: Vec<u8>,
}

struct Active {
    file: File,
    path: PathBuf,
    header: SegmentHeader,
    offset: u64,
    /// Up to here the file has been written before.
    written: u64,
}

impl Active {
    /// Writes zeros behind a frame that ends here, if it goes beyond what was written before. Reserved blocks read as zeros
    /// anyway, and what an unfinished frame left behind its place counts for nothing, so nothing depends on them: whether
    /// they reach the disk, before the frame or after it, and if writing them fails.
    fn fill_ahead(&mut self, io: &dyn Io, end: u64, segment_bytes: u64) {
        if end <= self.written {
            return;
        }
        let zeros = vec![0; ZEROS];
        let until = (end + AHEAD).min(segment_bytes);
        let mut at = end;
        while at < until {
            let length = (until - at).min(ZEROS as u64);
            if io.write(&self.file, &zeros[..length as usize], at).is_err() {
                break;
            }
            at += length;
        }
        self.written = until;
    }
}

/// Path of a segment.
pub(super) fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:016x}.log"))
}

/// Makes the directory's entries durable.
pub(super) fn sync_directory(io: &dyn Io, directory: &Path) -> io::Result<()> {
    io.sync(&File::open(directory)?)
}

impl Log {
    /// Starts a log in a directory that has none; its first frame will have `first_index`.
    pub fn create(
        directory: &Path,
        io: Arc<dyn Io>,
        segment_bytes: u64,
        number: u64,
        first_index: u64,
        spares: Vec<PathBuf>,
    ) -> Result<Self> {
        let mut spares = spares;
        let active = start_segment(directory, &*io, segment_bytes, number, first_index, &mut spares)
            .map_err(|error| match error {
                AppendError::Full => StoreError::NoSpace,
                AppendError::Failed { operation, path, source } => StoreError::io(operation, path)(source),
            })?;
        let index = first_index - 1;
        let finished = VecDeque::new();
        let directory = directory.to_owned();
        Ok(Self { directory, io, segment_bytes, active, index, finished, spares, buffer: Vec::new() })
    }

    /// Goes on after the last frame of the last segment, which `scan` describes.
    pub fn resume(
        io: Arc<dyn Io>,
        segment_bytes: u64,
        path: PathBuf,
        header: SegmentHeader,
        scan: &Scan,
        finished: VecDeque<(PathBuf, u64)>,
        spares: Vec<PathBuf>,
    ) -> Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).open(&path).map_err(StoreError::io("open", &path))?;
        // A crash may have left the last frame in the page cache only; it is about to be served.
        io.sync(&file).map_err(StoreError::io("sync", &path))?;
        let length = file.metadata().map_err(StoreError::io("inspect", &path))?.len();
        let mut reserved = true;
        if length < segment_bytes {
            match io.allocate(&file, segment_bytes) {
                Err(error) if !is_full(&error) => return Err(StoreError::io("allocate", &path)(error)),
                allocated => reserved = allocated.is_ok(),
            }
        }
        let index = header.first_index + scan.frames.len() as u64 - 1;
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        let offset = scan.end as u64;
        // On a full disk the room is kept for frames.
        let written = if reserved { offset } else { segment_bytes };
        let active = Active { file, path, header, offset, written };
        Ok(Self { directory, io, segment_bytes, active, index, finished, spares, buffer: Vec::new() })
    }

    /// Index of the last frame.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Appends one frame and makes it durable; returns the bytes it takes.
    pub fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<u64, AppendError> {
        let mut frame = std::mem::take(&mut self.buffer);
        frame.clear();
        frame.resize(FRAME, 0);
        encode(&mut frame);
        let result = self.append_frame(&mut frame);
        if frame.capacity() <= BUFFER {
            self.buffer = frame;
        }
        result
    }

    fn append_frame(&mut self, frame: &mut Vec<u8>) -> Result<u64, AppendError> {
        // Eight bytes more than the frame: its padding.
        if self.active.offset + frame.len() as u64 + 8 > self.segment_bytes {
            self.rotate()?;
        }
        let Active { file, path, header, offset, .. } = &mut self.active;
        header.seal(frame, *offset as usize, self.index + 1);
        self.io.write(file, frame, *offset).map_err(failed("write", path))?;
        let end = *offset + frame.len() as u64;
        self.active.fill_ahead(&*self.io, end, self.segment_bytes);
        let Active { file, path, offset, .. } = &mut self.active;
        // After a failed sync the kernel may have dropped the pages and still report success next time.
        self.io.sync(file).map_err(|source| AppendError::Failed {
            operation: "sync",
            path: path.clone(),
            source,
        })?;
        *offset += frame.len() as u64;
        self.index += 1;
        Ok(frame.len() as u64)
    }

    fn rotate(&mut self) -> Result<(), AppendError> {
        let number = self.active.header.number + 1;
        let next = start_segment(
            &self.directory,
            &*self.io,
            self.segment_bytes,
            number,
            self.index + 1,
            &mut self.spares,
        )?;
        let previous = std::mem::replace(&mut self.active, next);
        self.finished.push_back((previous.path, self.index));
        Ok(())
    }

    /// Lets go of the segments whose frames all have an index up to this one.
    pub fn release(&mut self, index: u64) {
        while self.finished.front().is_some_and(|(_, last)| *last <= index) {
            let Some((path, _)) = self.finished.pop_front() else { return };
            let result = if self.spares.len() < SPARES {
                let spare = path.with_extension("spare");
                let renamed = fs::rename(&path, &spare);
                if renamed.is_ok() {
                    self.spares.push(spare);
                }
                renamed
            } else {
                fs::remove_file(&path)
            };
            if let Err(error) = result {
                tracing::warn!(path = %path.display(), %error, "cannot remove an old log segment");
            }
        }
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AppendError {
    move |source| {
        if is_full(&source) {
            AppendError::Full
        } else {
            AppendError::Failed { operation, path: path.to_owned(), source }
        }
    }
}

/// A new segment, complete and durable before it gets its name.
fn start_segment(
    directory: &Path,
    io: &dyn Io,
    segment_bytes: u64,
    number: u64,
    first_index: u64,
    spares: &mut Vec<PathBuf>,
) -> Result<Active, AppendError> {
    let path = segment_path(directory, number);
    let header = SegmentHeader { number, salt: rand::random(), first_index };
    let spare = spares.pop();
    let reused = spare.is_some();
    let unnamed = spare.unwrap_or_else(|| path.with_extension("spare"));
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true).mode(0o600);
    let started = open.open(&unnamed).map_err(failed("open", &unnamed)).and_then(|file| {
        if !reused {
            io.allocate(&file, segment_bytes).map_err(failed("allocate", &unnamed))?;
        }
        io.write(&file, &header.encode(), 0).map_err(failed("write", &unnamed))?;
        io.sync(&file).map_err(failed("sync", &unnamed))?;
        fs::rename(&unnamed, &path).map_err(failed("rename", &unnamed))?;
        Ok(file)
    });
    let file = match started {
        Ok(file) => file,
        Err(error) => {
            // Nothing refers to the file yet. Give its room back; the next attempt starts afresh.
            let _ = fs::remove_file(&unnamed);
            return Err(error);
        }
    };
    sync_directory(io, directory).map_err(|source| AppendError::Failed {
        operation: "sync",
        path: directory.to_owned(),
        source,
    })?;
    // A spare one is full of old frames.
    let written = if reused { segment_bytes } else { HEADER as u64 };
    Ok(Active { file, path, header, offset: HEADER as u64, written })
}

/// A segment read back whole.
pub(super) struct Segment {
    pub path: PathBuf,
    pub header: SegmentHeader,
    pub bytes: Vec<u8>,
    pub scan: Scan,
}

impl Segment {
    pub fn read(path: PathBuf, number: u64) -> Result<Self> {
        let bytes = fs::read(&path).map_err(StoreError::io("read", &path))?;
        let header = SegmentHeader::decode(&bytes).filter(|header| header.number == number);
        let Some(header) = header else {
            return Err(StoreError::corrupt(path, "the segment's header is damaged"));
        };
        let scan = scan(&header, &bytes);
        Ok(Self { path, header, bytes, scan })
    }

    /// Index of the first frame that is not here.
    pub fn end_index(&self) -> u64 {
        self.header.first_index + self.scan.frames.len() as u64
    }
}
