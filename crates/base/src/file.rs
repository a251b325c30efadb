//! Atomic replacement of files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Readable by its owner only: keys, kubeconfigs.
pub const PRIVATE: u32 = 0o600;
/// World-readable: certificates.
pub const PUBLIC: u32 = 0o644;

/// Writes `content` to `path` so that a crash leaves the old file or the new one, and so that the content was
/// never readable by more than `mode` allows.
///
/// ```
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("kubeconfig");
/// base::file::replace(&path, b"kind: Config", base::file::PRIVATE)?;
/// assert_eq!(std::fs::read(&path)?, b"kind: Config");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = create(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error that matters is the first one.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_parent(path)
}

/// Writes a file and forces it to disk.
pub fn create(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write(path, content, mode)?.sync_all()
}

/// Writes a file, without forcing it to disk.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(mode))?;
    file.write_all(content)?;
    Ok(file)
}

/// Syncs a directory and the files in it together, so that they share one flush of the disk.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let files = fs::read_dir(path)?.map(|entry| File::open(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let syncs: Vec<_> = files.iter().map(|file| scope.spawn(|| file.sync_all())).collect();
        syncs
            .into_iter()
            .try_for_each(|sync| sync.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    File::open(path)?.sync_all()
}

/// Makes a rename in `path`'s directory durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replacing_keeps_the_mode_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        fs::write(&path, "old").expect("writes");
        replace(&path, b"new", PRIVATE).expect("replaces");
        assert_eq!(fs::read(&path).expect("reads"), b"new");
        let mode = fs::metadata(&path).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE);
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1);
    }
}
