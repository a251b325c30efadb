//! A log file that is rotated by size; rotated files are removed by number and age.

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Rotation settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Size limit in bytes; zero: no rotation.
    pub max_bytes: u64,
    /// Rotated files to retain; zero: all.
    pub max_backups: usize,
    /// Days to retain rotated files; zero: no limit.
    pub max_age_days: u32,
    pub compress: bool,
}

/// Output of a log.
pub enum LogFile {
    Standard,
    File(RotatingFile),
}

pub struct RotatingFile {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    size: u64,
}

impl LogFile {
    /// Opens a log; `-` is the standard output.
    pub fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Standard);
        }
        RotatingFile::open(path, rotation).map(Self::File)
    }

    /// Writes complete lines.
    pub fn write(&mut self, lines: &[u8], now: Timestamp) -> io::Result<()> {
        match self {
            Self::Standard => io::stdout().write_all(lines),
            Self::File(file) => file.write(lines, now),
        }
    }
}

impl RotatingFile {
    pub fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let (file, size) = append_to(path)?;
        Ok(Self { path: path.to_owned(), rotation, file, size })
    }

    fn write(&mut self, lines: &[u8], now: Timestamp) -> io::Result<()> {
        let length = lines.len() as u64;
        let max = self.rotation.max_bytes;
        if max > 0 && self.size > 0 && self.size + length > max {
            self.rotate(now)?;
        }
        self.file.write_all(lines)?;
        self.size += length;
        Ok(())
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let backup = self.backup_path(now);
        std::fs::rename(&self.path, &backup)?;
        (self.file, self.size) = append_to(&self.path)?;
        let (path, rotation) = (self.path.clone(), self.rotation);
        // Compression is slow, so it runs on a blocking thread.
        let tidy = move || {
            if let Err(error) = tidy_up(&path, rotation, now) {
                tracing::warn!(path = %path.display(), %error, "failed to clean up rotated audit logs");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(tidy)),
            Err(_) => tidy(),
        }
        Ok(())
    }

    /// `audit-2026-01-02T03-04-05.678.log` beside `audit.log`; the next millisecond if that name exists.
    fn backup_path(&self, now: Timestamp) -> PathBuf {
        let (stem, extension) = name_parts(&self.path);
        let mut now = now;
        loop {
            let stamp = format!("{now:.3}").replace(':', "-");
            let stamp = stamp.trim_end_matches('Z');
            let backup = self.path.with_file_name(format!("{stem}-{stamp}{extension}"));
            let compressed = PathBuf::from(format!("{}.gz", backup.display()));
            if !backup.exists() && !compressed.exists() {
                return backup;
            }
            now = now.saturating_add(jiff::SignedDuration::from_millis(1)).unwrap_or(now);
        }
    }
}

/// Opens the file with mode 0600: only its owner may read it.
fn append_to(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

fn name_parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let extension = text(path.extension()).map(|extension| format!(".{extension}")).unwrap_or_default();
    (text(path.file_stem()).unwrap_or_default(), extension)
}

/// Rotated files, newest first, with the time in their name.
pub fn backups(path: &Path) -> io::Result<Vec<(Timestamp, PathBuf)>> {
    let (stem, extension) = name_parts(path);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let stamp = plain
            .strip_suffix(extension.as_str())
            .and_then(|name| name.strip_prefix(stem.as_str()))
            .and_then(|name| name.strip_prefix('-'));
        let time = stamp.and_then(|stamp| {
            let (date, time) = stamp.split_once('T')?;
            format!("{date}T{}Z", time.replace('-', ":")).parse::<Timestamp>().ok()
        });
        if let Some(time) = time {
            found.push((time, entry.path()));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

fn tidy_up(path: &Path, rotation: Rotation, now: Timestamp) -> io::Result<()> {
    let age = jiff::SignedDuration::from_hours(24 * i64::from(rotation.max_age_days));
    for (at, (time, backup)) in backups(path)?.into_iter().enumerate() {
        let too_many = rotation.max_backups > 0 && at >= rotation.max_backups;
        let too_old = rotation.max_age_days > 0 && now.duration_since(time) > age;
        if too_many || too_old {
            std::fs::remove_file(&backup)?;
        } else if rotation.compress && backup.extension().is_none_or(|extension| extension != "gz") {
            compress(&backup)?;
        }
    }
    Ok(())
}

fn compress(path: &Path) -> io::Result<()> {
    let whole = PathBuf::from(format!("{}.gz", path.display()));
    let part = PathBuf::from(format!("{}.gz.part", path.display()));
    let target = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
    let mut encoder = GzEncoder::new(target, Compression::fast());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?;
    std::fs::rename(&part, &whole)?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn log_file_rotates_by_size_and_removes_old_backups() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("logs/audit.log");
        let rotation = Rotation { max_bytes: 30, max_backups: 3, max_age_days: 0, compress: true };
        let mut log = LogFile::open(&path, rotation).expect("opens");
        let mut now: Timestamp = "2026-01-02T03:04:05.678Z".parse().expect("a time");
        for line in 0..8 {
            log.write(format!("line {line} of some length\n").as_bytes(), now).expect("written");
            now = now.checked_add(jiff::SignedDuration::from_secs(1)).expect("in range");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "line 7 of some length\n");
        let kept = backups(&path).expect("listed");
        assert_eq!(kept.len(), 3);
        assert!(kept[0].1.ends_with("audit-2026-01-02T03-04-12.678.log.gz"), "{kept:?}");
        let mut text = String::new();
        flate2::read::GzDecoder::new(File::open(&kept[0].1).expect("opens"))
            .read_to_string(&mut text)
            .expect("gzip");
        assert_eq!(text, "line 6 of some length\n");

        // A restart appends to the existing file, and the age limit applies.
        let rotation = Rotation { max_bytes: 10, max_age_days: 1, ..rotation };
        let mut log = LogFile::open(&path, rotation).expect("opens");
        let later = now.checked_add(jiff::SignedDuration::from_hours(48)).expect("in range");
        log.write(b"much later\n", later).expect("written");
        assert_eq!(backups(&path).expect("listed").len(), 1);
    }

    #[test]
    fn rotation_in_same_millisecond_uses_distinct_names() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.log");
        let rotation = Rotation { max_bytes: 1, max_backups: 0, max_age_days: 0, compress: false };
        let mut log = LogFile::open(&path, rotation).expect("opens");
        for _ in 0..4 {
            log.write(b"x\n", Timestamp::UNIX_EPOCH).expect("written");
        }
        assert_eq!(backups(&path).expect("listed").len(), 3);
    }
}
