//! Notices when a file changes, without looking at it again and again.
//!
//! The directory is watched, not the file: files are replaced by renaming others over them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

/// Writers may need several steps; only what has come to rest is told.
const SETTLE: Duration = Duration::from_millis(100);
/// Room for many events.
const BUFFER: usize = 4096;

/// Watches one file.
#[derive(Debug)]
pub struct FileChanges {
    watch: AsyncFd<OwnedFd>,
    /// The file's name in its directory.
    name: OsString,
}

impl FileChanges {
    /// Changes from now on. Has to be called on the runtime.
    pub fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let wanted = inotify::WatchFlags::CLOSE_WRITE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE;
        inotify::add_watch(&watch, directory, wanted)?;
        Ok(Self { watch: register(watch)?, name })
    }

    /// Waits until the file has changed. Mounted volumes replace a link beside it; that counts, too.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut guard = self.watch.readable().await?;
            let mut relevant = false;
            let drained = guard.try_io(|watch| {
                let mut buffer = [MaybeUninit::uninit(); BUFFER];
                let mut reader = inotify::Reader::new(watch.get_ref(), &mut buffer);
                loop {
                    let event = match reader.next() {
                        Ok(event) => event,
                        Err(error) => return Err::<(), io::Error>(error.into()),
                    };
                    let name =
                        event.file_name().map(|name| OsStr::new(name.to_str().unwrap_or("")).to_owned());
                    relevant |= name.is_some_and(|name| name == self.name || name == "..data");
                }
            });
            if let Ok(Err(error)) = drained {
                return Err(error);
            }
            if relevant {
                tokio::time::sleep(SETTLE).await;
                return Ok(());
            }
        }
    }
}

#[expect(unsafe_code, reason = "the runtime has to be promised that the descriptor stays what it is")]
fn register(watch: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor refers to the same open file until it is dropped, which the runtime sees.
    Ok(unsafe { AsyncFd::register(watch) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn replaced_and_written_files_are_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        crate::file::replace(&path, b"1", crate::file::PRIVATE).expect("written");
        let mut changes = FileChanges::of(&path).expect("a watch");
        let limit = Duration::from_secs(10);
        std::fs::write(directory.path().join("other"), "x").expect("written");
        let quiet = tokio::time::timeout(Duration::from_millis(300), changes.changed()).await;
        assert!(quiet.is_err(), "another file is none of its business");
        crate::file::replace(&path, b"2", crate::file::PRIVATE).expect("written");
        tokio::time::timeout(limit, changes.changed()).await.expect("noticed").expect("watched");
        std::fs::write(&path, "3").expect("written");
        tokio::time::timeout(limit, changes.changed()).await.expect("noticed").expect("watched");
    }
}
