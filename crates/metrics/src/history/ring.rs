//! Segment files and the blocks that are not in them yet.

use super::block::{BlockWriter, HistoryPoint, points};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Seconds between two appends to a segment.
const FLUSH: i64 = 600;
/// Seconds that a segment covers.
const SEGMENT: i64 = 7200;
/// Series in memory, at most.
const MAX_SERIES: usize = 50_000;
/// Length of a segment that is read, at most.
const MAX_SEGMENT: u64 = 64 << 20;
const SUFFIX: &str = ".usage";

/// Settings of the history.
#[derive(Clone, Debug)]
pub struct HistoryConfig {
    pub directory: PathBuf,
    pub retention: Duration,
    /// Size of all segments, at most; the oldest are deleted beyond it.
    pub max_bytes: u64,
}

impl HistoryConfig {
    /// A day, in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let retention = Duration::from_secs(24 * 60 * 60);
        Self { directory: directory.into(), retention, max_bytes: 128 << 20 }
    }
}

/// A node or a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SeriesKey {
    Node(Box<str>),
    Pod { namespace: Box<str>, name: Box<str> },
}

impl SeriesKey {
    fn encode(&self) -> (u8, String) {
        match self {
            Self::Node(name) => (0, name.to_string()),
            Self::Pod { namespace, name } => (1, format!("{namespace}/{name}")),
        }
    }

    fn decode(kind: u8, text: &str) -> Option<Self> {
        match kind {
            0 => Some(Self::Node(text.into())),
            1 => {
                let (namespace, name) = text.split_once('/')?;
                Some(Self::Pod { namespace: namespace.into(), name: name.into() })
            }
            _ => None,
        }
    }
}

/// The history of all series.
#[derive(Debug)]
pub struct History {
    config: HistoryConfig,
    open: Mutex<Open>,
    /// The segment that is appended to; held while a frame is written.
    segment: Mutex<Option<Segment>>,
}

/// A segment whose frames are all valid.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: i64,
    length: u64,
}

#[derive(Debug, Default)]
struct Open {
    blocks: HashMap<SeriesKey, BlockWriter>,
    /// Second of the last append.
    flushed: Option<i64>,
}

impl History {
    /// Opens the history in its directory, which is created if it is missing.
    pub fn open(config: HistoryConfig) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.directory)?;
        let history = Self { config, open: Mutex::default(), segment: Mutex::default() };
        if let Some((start, ..)) = history.segments()?.pop() {
            *history.segment.lock() = Some(history.repair(start)?);
        }
        Ok(history)
    }

    fn path(&self, start: i64) -> PathBuf {
        self.config.directory.join(format!("{start:020}{SUFFIX}"))
    }

    /// Truncates a segment to its last valid frame: frames behind a damaged one are never read.
    fn repair(&self, start: i64) -> io::Result<Segment> {
        let path = self.path(start);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Segment { start, length: 0 }),
            read => read?,
        };
        let mut rest = Cursor(&bytes);
        let mut valid = 0;
        while rest.frame().is_some() {
            valid = bytes.len().saturating_sub(rest.0.len());
        }
        let length = u64::try_from(valid).unwrap_or(u64::MAX);
        if valid < bytes.len() {
            let lost = bytes.len().saturating_sub(valid);
            tracing::warn!(segment = %path.display(), bytes = lost, "truncating a damaged segment of the history");
            OpenOptions::new().write(true).open(&path)?.set_len(length)?;
        }
        Ok(Segment { start, length })
    }

    /// Appends a frame to the segment that begins at `start`. One that is not written to its end is removed again.
    fn append(&self, start: i64, frame: &[u8]) -> io::Result<()> {
        let mut segment = self.segment.lock();
        let mut current = match segment.take() {
            Some(current) if current.start == start => current,
            _ => self.repair(start)?,
        };
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(self.path(start))?;
        if let Err(error) = file.write_all(frame).and_then(|()| file.sync_data()) {
            // Without success, the segment is repaired before the next frame.
            let _ = file.set_len(current.length);
            return Err(error);
        }
        current.length = current.length.saturating_add(u64::try_from(frame.len()).unwrap_or(0));
        *segment = Some(current);
        Ok(())
    }

    /// Adds points of one moment. Returns whether blocks are due to be appended by [`History::flush`].
    pub fn record(&self, now: i64, all: impl IntoIterator<Item = (SeriesKey, HistoryPoint)>) -> bool {
        let mut open = self.open.lock();
        for (key, point) in all {
            if open.blocks.len() < MAX_SERIES || open.blocks.contains_key(&key) {
                open.blocks.entry(key).or_default().push(point);
            }
        }
        now.saturating_sub(*open.flushed.get_or_insert(now)) >= FLUSH
    }

    /// Appends all blocks to the segment of `now`, and deletes segments that are too old. Blocks for the disk.
    pub fn flush(&self, now: i64) -> io::Result<()> {
        let blocks = {
            let mut open = self.open.lock();
            open.flushed = Some(now);
            std::mem::take(&mut open.blocks)
        };
        let mut payload = Vec::new();
        for (key, block) in &blocks {
            let (kind, text) = key.encode();
            let bytes = block.bytes();
            let (Ok(length), Ok(size)) = (u16::try_from(text.len()), u32::try_from(bytes.len())) else {
                continue;
            };
            payload.push(kind);
            payload.extend_from_slice(&length.to_be_bytes());
            payload.extend_from_slice(text.as_bytes());
            payload.extend_from_slice(&size.to_be_bytes());
            payload.extend_from_slice(&bytes);
        }
        if let (false, Ok(length)) = (payload.is_empty(), u32::try_from(payload.len())) {
            let mut frame = Vec::with_capacity(payload.len().saturating_add(8));
            frame.extend_from_slice(&length.to_be_bytes());
            frame.extend_from_slice(&crc32c::crc32c(&payload).to_be_bytes());
            frame.append(&mut payload);
            self.append(now.div_euclid(SEGMENT).saturating_mul(SEGMENT), &frame)?;
        }
        self.prune(now)
    }

    /// Segments by their start, the oldest first.
    fn segments(&self) -> io::Result<Vec<(i64, PathBuf, u64)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.config.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let start = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
            if let Some(start) = start {
                found.push((start, entry.path(), entry.metadata()?.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn prune(&self, now: i64) -> io::Result<()> {
        let retention = i64::try_from(self.config.retention.as_secs()).unwrap_or(i64::MAX);
        let segments = self.segments()?;
        let mut total = segments.iter().fold(0_u64, |sum, (_, _, size)| sum.saturating_add(*size));
        for (start, path, size) in segments {
            let is_old = start.saturating_add(SEGMENT) < now.saturating_sub(retention);
            if is_old || total > self.config.max_bytes {
                fs::remove_file(path)?;
                total = total.saturating_sub(size);
            }
        }
        Ok(())
    }

    /// Calls `visit` with every point since `since`, per series in order of time. Reads one segment at a time.
    pub fn read(&self, since: i64, mut visit: impl FnMut(&SeriesKey, HistoryPoint)) -> io::Result<()> {
        // Blocks in memory first: those that are appended meanwhile are then missing in neither.
        let open: Vec<(SeriesKey, Vec<u8>)> = {
            let open = self.open.lock();
            open.blocks.iter().map(|(key, block)| (key.clone(), block.bytes())).collect()
        };
        for (start, path, size) in self.segments()? {
            let end = start.saturating_add(SEGMENT).saturating_add(FLUSH);
            if end >= since && size <= MAX_SEGMENT {
                read_segment(&path, since, &mut visit)?;
            }
        }
        for (key, block) in &open {
            points(block).filter(|point| point.at >= since).for_each(|point| visit(key, point));
        }
        Ok(())
    }
}

/// Reads the frames of a segment, up to one that is damaged or was not written to its end.
fn read_segment(path: &Path, since: i64, visit: &mut impl FnMut(&SeriesKey, HistoryPoint)) -> io::Result<()> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read?,
    };
    let mut rest = Cursor(&bytes);
    while let Some(payload) = rest.frame() {
        let mut entries = Cursor(payload);
        while let Some((key, block)) = entries.entry() {
            points(block).filter(|point| point.at >= since).for_each(|point| visit(&key, point));
        }
    }
    Ok(())
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn frame(&mut self) -> Option<&'a [u8]> {
        let (length, sum) = (self.number()?, self.number()?);
        let payload = self.take(usize::try_from(length).ok()?)?;
        (crc32c::crc32c(payload) == sum).then_some(payload)
    }

    fn entry(&mut self) -> Option<(SeriesKey, &'a [u8])> {
        let kind = *self.take(1)?.first()?;
        let length = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        let text = std::str::from_utf8(self.take(usize::from(length))?).ok()?;
        let key = SeriesKey::decode(kind, text)?;
        let size = usize::try_from(self.number()?).ok()?;
        Some((key, self.take(size)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_767_225_600;

    fn pod(number: usize) -> SeriesKey {
        SeriesKey::Pod { namespace: "production".into(), name: format!("web-6d4cf56db6-{number:05}").into() }
    }

    /// Points of a day with noise in every value, by a small generator.
    fn fill(history: &History, pods: usize, until: i64) {
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        let mut at = START;
        while at < until {
            let all = (0..pods).map(|number| {
                let point = HistoryPoint {
                    at,
                    cpu: 100 + random() % 400,
                    memory: (200 << 20) + ((random() % 65_536) << 12),
                };
                (pod(number), point)
            });
            if history.record(at, all.collect::<Vec<_>>()) {
                history.flush(at).expect("appends");
            }
            at += 15;
        }
    }

    #[test]
    fn day_of_a_hundred_pods_takes_less_than_16_megabytes() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::open(HistoryConfig::new(directory.path())).expect("opens");
        let day = 24 * 60 * 60;
        fill(&history, 100, START + day + 2 * SEGMENT);
        let size: u64 = history.segments().expect("segments").iter().map(|(_, _, size)| size).sum();
        println!("{size} bytes");
        assert!(size < 16 << 20, "{size}");
        let end = START + day + 2 * SEGMENT;
        let mut count = 0;
        history
            .read(end - day, |key, point| {
                assert!(point.at >= end - day);
                count += usize::from(*key == pod(7));
            })
            .expect("reads");
        assert_eq!(count, usize::try_from(day / 15).expect("a number"));
        assert!(history.segments().expect("segments").len() <= 14, "old segments are deleted");
    }

    #[test]
    fn history_survives_a_restart_and_a_torn_write() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || History::open(HistoryConfig::new(directory.path())).expect("opens");
        let history = open();
        fill(&history, 2, START + 1000);
        history.flush(START + 1000).expect("appends");
        let count = |history: &History| {
            let mut count = 0;
            history.read(0, |_, _| count += 1).expect("reads");
            count
        };
        let all = count(&history);
        assert_eq!(all, 2 * 67);
        drop(history);
        assert_eq!(count(&open()), all);
        let (_, path, size) = open().segments().expect("segments").remove(0);
        OpenOptions::new().write(true).open(&path).expect("opens").set_len(size - 5).expect("truncates");
        let left = count(&open());
        assert!(left > 0 && left < all, "{left} of {all}");
        fs::write(&path, b"no segment").expect("writes");
        assert_eq!(count(&open()), 0);
    }

    #[test]
    fn points_after_a_torn_write_are_not_lost() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || History::open(HistoryConfig::new(directory.path())).expect("opens");
        let times = |history: &History| {
            let mut times = Vec::new();
            history.read(0, |_, point| times.push(point.at)).expect("reads");
            times
        };
        let write = |history: &History, at: i64| {
            history.record(at, [(pod(1), HistoryPoint { at, cpu: 1, memory: 1 })]);
            history.flush(at).expect("appends");
        };
        let history = open();
        write(&history, START);
        write(&history, START + 600);
        let (_, path, size) = history.segments().expect("segments").remove(0);
        let tear = |length: u64| {
            OpenOptions::new().write(true).open(&path).expect("opens").set_len(length).expect("truncates");
        };
        tear(size - 5);
        let history = open();
        write(&history, START + 1200);
        assert_eq!(times(&history), [START, START + 1200], "after a crash in the middle of a frame");
        // Bytes of a write that failed and could not be removed either.
        OpenOptions::new().append(true).open(&path).expect("opens").write_all(&[7; 100]).expect("writes");
        *history.segment.lock() = None;
        write(&history, START + 1800);
        assert_eq!(times(&history), [START, START + 1200, START + 1800], "after a failed write");
        fs::write(&path, b"no segment").expect("writes");
        let history = open();
        write(&history, START + 2400);
        assert_eq!(times(&open()), [START + 2400]);
    }

    #[test]
    fn failed_write_leaves_whole_frames() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::open(HistoryConfig::new(directory.path())).expect("opens");
        let write = |at: i64| {
            history.record(at, [(pod(1), HistoryPoint { at, cpu: 1, memory: 1 })]);
            history.flush(at)
        };
        write(START).expect("appends");
        // Root may write to files without write permission, so the segment becomes a directory.
        let (_, path, _) = history.segments().expect("segments").remove(0);
        let aside = directory.path().join("aside");
        fs::rename(&path, &aside).expect("renames");
        fs::create_dir(&path).expect("a directory");
        assert!(write(START + 600).is_err());
        fs::remove_dir(&path).expect("removes");
        fs::rename(&aside, &path).expect("renames");
        write(START + 1200).expect("appends");
        let mut times = Vec::new();
        history.read(0, |_, point| times.push(point.at)).expect("reads");
        assert_eq!(times, [START, START + 1200]);
    }

    #[test]
    fn oldest_segments_are_deleted_beyond_the_size() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = HistoryConfig { max_bytes: 30_000, ..HistoryConfig::new(directory.path()) };
        let history = History::open(config).expect("opens");
        fill(&history, 5, START + 10 * SEGMENT);
        let segments = history.segments().expect("segments");
        let size: u64 = segments.iter().map(|(_, _, size)| size).sum();
        assert!(size <= 30_000 && !segments.is_empty(), "{size}");
    }
}
