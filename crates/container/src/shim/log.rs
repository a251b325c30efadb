//! Container logs in the format that Kubernetes reads: `time stream F|P line`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Longer lines are written in parts, all but the last marked `P`.
const LONGEST_LINE: usize = 16 << 10;

/// A log file that can be rotated while it is written.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

/// One of the container's two output streams. Data after the last line feed is retained for the next read.
#[derive(Default)]
pub(super) struct Lines {
    name: &'static str,
    partial: Vec<u8>,
}

fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

impl Log {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: open(path)?, buffer: Vec::new() })
    }

    /// Continues in a new file after rotation.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        Ok(())
    }

    fn entry(&mut self, at: i64, stream: &str, tag: u8, line: &[u8]) {
        timestamp(&mut self.buffer, at);
        self.buffer.push(b' ');
        self.buffer.extend_from_slice(stream.as_bytes());
        self.buffer.extend_from_slice(&[b' ', tag, b' ']);
        self.buffer.extend_from_slice(line);
        self.buffer.push(b'\n');
    }

    /// Writes buffered lines; on a full disk they are lost and the container continues.
    fn flush(&mut self) {
        let _ = self.file.write_all(&self.buffer);
        self.buffer.clear();
        self.buffer.shrink_to(64 << 10);
    }
}

impl Lines {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, partial: Vec::new() }
    }

    /// Buffers output and writes complete lines.
    pub(super) fn write(&mut self, log: &mut Log, at: i64, mut output: &[u8]) {
        while !output.is_empty() {
            let space = LONGEST_LINE - self.partial.len();
            match output.iter().take(space).position(|byte| *byte == b'\n') {
                Some(end) => {
                    self.partial.extend_from_slice(&output[..end]);
                    log.entry(at, self.name, b'F', &self.partial);
                    self.partial.clear();
                    output = &output[end + 1..];
                }
                None => {
                    let taken = space.min(output.len());
                    self.partial.extend_from_slice(&output[..taken]);
                    output = &output[taken..];
                    // A line feed directly after a full part ends the line; it may be in the next read.
                    if self.partial.len() == LONGEST_LINE {
                        let last = output.first() == Some(&b'\n');
                        log.entry(at, self.name, if last { b'F' } else { b'P' }, &self.partial);
                        self.partial.clear();
                        output = &output[usize::from(last)..];
                    }
                }
            }
        }
        log.flush();
    }

    /// At the end: writes an incomplete last line, marked so that readers show it without a line feed.
    pub(super) fn finish(&mut self, log: &mut Log, at: i64) {
        if !self.partial.is_empty() {
            log.entry(at, self.name, b'P', &self.partial);
            self.partial.clear();
            log.flush();
        }
    }
}

/// Writes nanoseconds since 1970 as RFC 3339, in UTC.
fn timestamp(out: &mut Vec<u8>, at: i64) {
    let (seconds, nanos) = (at.div_euclid(1_000_000_000), at.rem_euclid(1_000_000_000));
    let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // The civil calendar from days, counted from a March so that leap days come last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let _ = write!(
        out,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{nanos:09}Z",
        time / 3600,
        time / 60 % 60,
        time % 60
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc3339() {
        for (at, expected) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_001, "2000-02-29T00:00:00.000000001Z"),
            (1_794_787_199_999_999_999, "2026-11-15T23:59:59.999999999Z"),
            (1_709_251_200_000_000_000, "2024-03-01T00:00:00.000000000Z"),
        ] {
            let mut out = Vec::new();
            timestamp(&mut out, at);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn long_lines_are_split_into_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/0.log");
        let mut log = Log::open(&path).unwrap();
        let mut lines = Lines::new("stdout");
        lines.write(&mut log, 0, b"one\ntw");
        lines.write(&mut log, 0, b"o\n\n");
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        log.reopen().unwrap();
        let exact = [vec![b'x'; LONGEST_LINE], vec![b'\n']].concat();
        lines.write(&mut log, 0, &exact);
        lines.write(&mut log, 0, &vec![b'y'; LONGEST_LINE + 3]);
        lines.finish(&mut log, 0);
        let short = |path: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines().map(|line| line[31..].chars().take(12).collect()).collect()
        };
        assert_eq!(short(&dir.path().join("old")), ["stdout F one", "stdout F two", "stdout F "]);
        assert_eq!(short(&path), ["stdout F xxx", "stdout P yyy", "stdout P yyy"]);
    }
}
