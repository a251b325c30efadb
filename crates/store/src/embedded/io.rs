//! File operations that durability depends on, behind a trait so that tests can inject failures.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;

/// File operations of the log and the checkpoints.
pub trait Io: Send + Sync + 'static {
    /// Opens the file of a log segment for reading and writing, creating it for its owner only if it is missing.
    fn open(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    /// Writes all of `data` at `offset`.
    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the contents of the file (or the entries of the directory) durable.
    fn sync(&self, file: &File) -> io::Result<()>;
    /// Reserves disk space for the first `length` bytes of the file.
    fn allocate(&self, file: &File, length: u64) -> io::Result<()>;
}

/// File operations of the operating system.
#[derive(Debug, Default)]
pub struct Disk;

impl Io for Disk {
    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(data, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn allocate(&self, file: &File, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length) {
            // Not every file system supports reservation; the log then allocates space as it grows.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(length),
            other => other.map_err(Into::into),
        }
    }
}

/// True if the process or the system has exhausted a resource that becomes available again, such as descriptors.
pub(super) fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// True if the disk or the quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
