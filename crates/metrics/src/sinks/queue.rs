//! Payloads on disk that wait for their server, compressed and in order.
//!
//! A payload is synchronized with the disk before [`DiskQueue::push`] returns, so that neither a crash of the process nor
//! one of the machine loses it.

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".deflate";
/// Size of a payload after decompression, at most.
const LONGEST_PAYLOAD: u64 = 64 << 20;

/// A queue of bounded size in a directory. The oldest payloads give way to new ones.
#[derive(Debug)]
pub struct DiskQueue {
    directory: PathBuf,
    limit: u64,
    /// Numbers and sizes, the oldest first.
    waiting: VecDeque<(u64, u64)>,
    /// Sum of the sizes.
    size: u64,
    next: u64,
}

impl DiskQueue {
    /// Opens the queue, with what an earlier process left. `limit` is its size on disk, at most.
    pub fn open(directory: PathBuf, limit: u64) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let mut waiting = Vec::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok()) {
                Some(number) => waiting.push((number, entry.metadata()?.len())),
                // A payload that was not written to its end.
                None => fs::remove_file(entry.path())?,
            }
        }
        waiting.sort_unstable();
        let next = waiting.last().map_or(0, |(number, _): &(u64, u64)| number.saturating_add(1));
        let size = waiting.iter().fold(0_u64, |sum, (_, size)| sum.saturating_add(*size));
        Ok(Self { directory, limit, waiting: waiting.into(), size, next })
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Size on disk, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:020}{SUFFIX}"))
    }

    /// Appends a payload. Returns the number of payloads that were dropped for it.
    pub fn push(&mut self, payload: &[u8]) -> io::Result<usize> {
        let compressed = compress(payload)?;
        let size = u64::try_from(compressed.len()).unwrap_or(u64::MAX);
        if size > self.limit {
            return Ok(1);
        }
        let mut dropped = 0;
        while self.size.saturating_add(size) > self.limit && !self.is_empty() {
            self.pop()?;
            dropped += 1;
        }
        let number = self.next;
        let partial = self.directory.join("partial");
        write(&partial, &compressed)?;
        fs::rename(partial, self.path(number))?;
        // The new name is lost in a crash until the directory is synchronized.
        fs::File::open(&self.directory)?.sync_all()?;
        self.next = number.saturating_add(1);
        self.waiting.push_back((number, size));
        self.size = self.size.saturating_add(size);
        Ok(dropped)
    }

    /// The oldest payload, and the number of those before it that were dropped because they cannot be read.
    pub fn front(&mut self) -> (Option<Vec<u8>>, usize) {
        let mut dropped = 0;
        while let Some((number, _)) = self.waiting.front().copied() {
            match fs::read(self.path(number)).and_then(|compressed| decompress(&compressed)) {
                Ok(payload) => return (Some(payload), dropped),
                Err(error) => {
                    tracing::warn!(%error, "failed to read a payload of a sink");
                    dropped += 1;
                    // A file that cannot be removed is read again after a restart, and dropped again.
                    let _ = self.pop();
                }
            }
        }
        (None, dropped)
    }

    /// Removes the oldest payload.
    pub fn pop(&mut self) -> io::Result<()> {
        match self.waiting.pop_front() {
            Some((number, size)) => {
                self.size = self.size.saturating_sub(size);
                fs::remove_file(self.path(number))
            }
            None => Ok(()),
        }
    }
}

fn compress(payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(payload)?;
    encoder.finish()
}

fn decompress(compressed: &[u8]) -> io::Result<Vec<u8>> {
    let mut payload = Vec::new();
    DeflateDecoder::new(compressed).take(LONGEST_PAYLOAD).read_to_end(&mut payload)?;
    Ok(payload)
}

fn write(path: &Path, payload: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(payload)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::DEFAULT_QUEUE_SIZE;
    use super::super::config::SinkKind;
    use super::super::encode::encode;
    use super::super::snapshot::large_example;
    use super::*;

    /// Bytes that cannot be compressed.
    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn queue_survives_a_restart_and_is_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || DiskQueue::open(directory.path().to_owned(), 2500).expect("opens");
        let payloads: Vec<Vec<u8>> = (1..=4).map(|seed| noise(seed, 1000)).collect();
        let mut queue = open();
        assert_eq!(queue.push(&payloads[0]).expect("written"), 0);
        assert_eq!(queue.push(&payloads[1]).expect("written"), 0);
        assert_eq!(queue.push(&payloads[2]).expect("written"), 1, "the oldest gives way");
        assert_eq!(queue.push(&noise(9, 5000)).expect("refused"), 1);
        assert!(queue.size() <= 2500);
        fs::write(directory.path().join("partial"), b"torn").expect("written");
        let mut queue = open();
        assert_eq!((queue.len(), queue.front()), (2, (Some(payloads[1].clone()), 0)));
        queue.pop().expect("removed");
        assert_eq!(queue.front().0.as_ref(), Some(&payloads[2]));
        queue.pop().expect("removed");
        assert_eq!(queue.size(), 0);
        queue.push(&payloads[3]).expect("written");
        assert_eq!(open().front().0.as_ref(), Some(&payloads[3]));
    }

    #[test]
    fn damaged_payload_is_counted_and_skipped() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut queue = DiskQueue::open(directory.path().to_owned(), 1 << 20).expect("opens");
        queue.push(b"first").expect("written");
        queue.push(b"second").expect("written");
        fs::write(queue.path(0), b"\xff\xff\xff").expect("damaged");
        assert_eq!(queue.front(), (Some(b"second".to_vec()), 1));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn hour_of_a_thousand_pods_fits_into_the_queue() {
        for kind in [SinkKind::File, SinkKind::RemoteWriteV1, SinkKind::RemoteWriteV2, SinkKind::Otlp] {
            // Values of every cycle differ, so cycles have similar sizes: a few stand for all 240 of an hour.
            let mut size = 0;
            for cycle in 0..2 {
                let cycle = large_example(1000, 1_767_225_600_000 + cycle * 15_000);
                for part in cycle.parts(super::super::BATCH) {
                    size += compress(&encode(&kind, part)).expect("compresses").len();
                }
            }
            let hour = u64::try_from(size).expect("a number") * 120;
            println!("{kind:?}: {} MB for an hour", hour >> 20);
            assert!(hour <= DEFAULT_QUEUE_SIZE, "{kind:?}: {hour}");
        }
    }
}
