//! The write-ahead log: appends frames to segments, starts new segments, reuses old files.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SMALLEST_SEGMENT;
use super::io::{Io, is_full, is_passing};
use super::segment::{FRAME, HEADER, ROTATION_NOTE, Scan, SegmentHeader, scan};
use crate::error::{Result, StoreError};

/// Old segment files retained for reuse: as many as one checkpoint releases. Syncing blocks that were written before
/// is also faster than syncing newly allocated ones.
const SPARES: usize = 4;
/// Bytes of a new segment that are zero-filled ahead of the frames. Syncing a block that is reserved but was never
/// written is slow, because the file system must first mark it as written; filling ahead does that once for many syncs.
const AHEAD: u64 = 256 * 1024;
const ZEROS: usize = 64 * 1024;
/// A buffer larger than this is freed after use.
const BUFFER: usize = 1 << 20;

/// Reason for which a frame was not appended.
#[derive(Debug)]
pub(super) enum AppendError {
    /// The disk is full; the log is unchanged and the append may be retried.
    Full,
    /// The new segment could not be created for a transient reason; the append may be retried.
    Passing { operation: &'static str, path: PathBuf, source: io::Error },
    /// The content of the disk is unknown.
    Failed { operation: &'static str, path: PathBuf, source: io::Error },
}

/// The log, open for appending.
pub(super) struct Log {
    directory: PathBuf,
    /// The directory, kept open so that syncing it needs no further descriptor.
    handle: File,
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
    /// Offset up to which the file has been written before.
    written: u64,
}

impl Active {
    /// Writes zeros behind a frame that ends here, if it extends beyond the part written before. Reserved blocks read
    /// as zeros, and remains of an unfinished frame are ignored, so correctness does not depend on these zeros: they
    /// may reach the disk before or after the frame, or not at all.
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

/// Opens the directory and makes its entries durable: those of spares before their reuse.
fn open_directory(io: &dyn Io, directory: &Path) -> Result<File> {
    let handle = File::open(directory).map_err(StoreError::io("open", directory))?;
    io.sync(&handle).map_err(StoreError::io("sync", directory))?;
    Ok(handle)
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
        let handle = open_directory(&*io, directory)?;
        let active =
            start_segment((directory, &handle), &*io, segment_bytes, number, first_index, &mut spares)
                .map_err(|error| match error {
                    AppendError::Full => StoreError::NoSpace,
                    AppendError::Passing { operation, path, source }
                    | AppendError::Failed { operation, path, source } => {
                        StoreError::io(operation, path)(source)
                    }
                })?;
        let index = first_index - 1;
        let finished = VecDeque::new();
        let directory = directory.to_owned();
        let buffer = Vec::new();
        Ok(Self { directory, handle, io, segment_bytes, active, index, finished, spares, buffer })
    }

    /// Continues after the last frame of the last segment.
    pub fn resume(
        io: Arc<dyn Io>,
        segment_bytes: u64,
        segment: Segment,
        finished: VecDeque<(PathBuf, u64)>,
        spares: Vec<PathBuf>,
    ) -> Result<Self> {
        let Segment { path, header, bytes, scan } = segment;
        let file =
            OpenOptions::new().read(true).write(true).open(&path).map_err(StoreError::io("open", &path))?;
        // The last frame may be in the page cache only, and will be served. Syncing alone is not enough: if its sync
        // has failed before, the kernel has marked its pages clean and would write nothing.
        let tail = scan.frames.last().map_or(0, |last| last.start - FRAME)..scan.end;
        match io.write(&file, &bytes[tail.clone()], tail.start as u64) {
            // Overwriting may need space (copy-on-write file systems); a full disk must not prevent the store from
            // opening.
            Err(error) if is_full(&error) => {
                tracing::warn!(path = %path.display(), %error, "failed to rewrite the last frame of the log");
            }
            written => written.map_err(StoreError::io("write", &path))?,
        }
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
        // On a full disk the space is reserved for frames.
        let written = if reserved { offset } else { segment_bytes };
        let active = Active { file, path, header, offset, written };
        let handle = open_directory(&*io, &directory)?;
        let buffer = Vec::new();
        Ok(Self { directory, handle, io, segment_bytes, active, index, finished, spares, buffer })
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
            (&self.directory, &self.handle),
            &*self.io,
            self.segment_bytes,
            number,
            self.index + 1,
            &mut self.spares,
        )?;
        let previous = std::mem::replace(&mut self.active, next);
        // Without the note, the loss of the next segment would go unnoticed; nothing else depends on it.
        let noted = self.io.write(&previous.file, &previous.header.rotation_note(), ROTATION_NOTE as u64);
        if let Err(error) = noted.and_then(|()| self.io.sync(&previous.file)) {
            tracing::warn!(path = %previous.path.display(), %error, "failed to record the rotation of a log segment");
        }
        self.finished.push_back((previous.path, self.index));
        Ok(())
    }

    /// Releases the segments whose frames all have an index up to this one.
    pub fn release(&mut self, index: u64) {
        let mut spares = Vec::new();
        while self.finished.front().is_some_and(|(_, last)| *last <= index) {
            let Some((path, _)) = self.finished.pop_front() else { return };
            let result = if self.spares.len() + spares.len() < SPARES {
                let spare = path.with_extension("spare");
                let renamed = fs::rename(&path, &spare);
                if renamed.is_ok() {
                    spares.push(spare);
                }
                renamed
            } else {
                fs::remove_file(&path)
            };
            if let Err(error) = result {
                tracing::warn!(path = %path.display(), %error, "failed to remove an old log segment");
            }
        }
        // A spare is used once its new name is durable: otherwise a power cut may restore the old name with the
        // contents of another segment.
        match self.io.sync(&self.handle) {
            Ok(()) => self.spares.append(&mut spares),
            Err(error) => {
                tracing::warn!(path = %self.directory.display(), %error, "failed to sync the directory, old log segments are not reused");
            }
        }
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AppendError {
    move |source| {
        if is_full(&source) {
            AppendError::Full
        } else if operation == "open" && is_passing(&source) {
            AppendError::Passing { operation, path: path.to_owned(), source }
        } else {
            AppendError::Failed { operation, path: path.to_owned(), source }
        }
    }
}

/// A new segment, complete and durable before it gets its name.
fn start_segment(
    (directory, handle): (&Path, &File),
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
    let started = io.open(&unnamed).map_err(failed("open", &unnamed)).and_then(|file| {
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
        // Nothing was written: the spare file, if there is one, can still be used.
        Err(error @ AppendError::Passing { .. }) => {
            spares.extend(reused.then_some(unnamed));
            return Err(error);
        }
        Err(error) => {
            // The file is unreferenced: remove it to free its space; the next attempt creates another.
            let _ = fs::remove_file(&unnamed);
            return Err(error);
        }
    };
    io.sync(handle).map_err(|source| AppendError::Failed {
        operation: "sync",
        path: directory.to_owned(),
        source,
    })?;
    // A spare segment still contains old frames.
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
    /// The header alone; none if it is damaged, or that of another segment.
    pub fn read_header(path: &Path, number: u64) -> Option<SegmentHeader> {
        let mut bytes = [0; HEADER];
        File::open(path).ok()?.read_exact(&mut bytes).ok()?;
        SegmentHeader::decode(&bytes).filter(|header| header.number == number)
    }

    pub fn read(path: PathBuf, number: u64) -> Result<Self> {
        let bytes = fs::read(&path).map_err(StoreError::io("read", &path))?;
        if (bytes.len() as u64) < SMALLEST_SEGMENT {
            let reason = format!("{} bytes, expected at least {SMALLEST_SEGMENT}", bytes.len());
            return Err(StoreError::corrupt(path, reason));
        }
        let header = SegmentHeader::decode(&bytes).filter(|header| header.number == number);
        let Some(header) = header else {
            return Err(StoreError::corrupt(path, "the segment's header is damaged"));
        };
        let scan = scan(&header, &bytes);
        Ok(Self { path, header, bytes, scan })
    }

    /// Reports whether another segment has been started after this one.
    pub fn is_rotated(&self) -> bool {
        self.header.is_rotated(&self.bytes)
    }

    /// Index of the frame after the last one in this segment.
    pub fn end_index(&self) -> u64 {
        self.header.first_index + self.scan.frames.len() as u64
    }
}
