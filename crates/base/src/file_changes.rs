//! Notifies of file changes with inotify, without polling.
//!
//! [`FileChanges`] watches the directory, because files are replaced by renaming others over them, and the file itself,
//! because a mounted file is written in place. For a symbolic link it also watches the directory of the target.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;
pub use rustix::fs::inotify::WatchFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Writers may need several steps; a change is reported after this quiet period.
const SETTLE: Duration = Duration::from_millis(100);
/// Delay to coalesce further changes of a directory before reporting.
const COALESCE_DELAY: Duration = Duration::from_millis(20);
/// Polling interval of directories where the watch fails.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Buffer for many events.
const BUFFER: usize = 4096;

/// An inotify instance on the runtime.
#[derive(Debug)]
pub struct Inotify(AsyncFd<OwnedFd>);

impl Inotify {
    /// Has to be called on the runtime.
    pub fn new() -> io::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        Ok(Self(register(watch, Interest::READABLE | Interest::WRITABLE)?))
    }

    /// Watches a file or directory.
    pub fn add(&self, path: &Path, events: WatchFlags) -> io::Result<()> {
        inotify::add_watch(self.0.get_ref(), path, events)?;
        Ok(())
    }

    /// Waits for events; returns the file names in watched directories, empty for a watched path itself.
    pub async fn names(&mut self) -> io::Result<Vec<OsString>> {
        loop {
            let mut guard = self.0.readable().await?;
            let mut names = Vec::new();
            let drained = guard.try_io(|watch| Err::<(), io::Error>(read(watch.get_ref(), &mut names)));
            if let Ok(Err(error)) = drained {
                return Err(error);
            }
            if !names.is_empty() {
                return Ok(names);
            }
        }
    }

    /// Discards the events so far.
    fn discard(&self) {
        read(self.0.get_ref(), &mut Vec::new());
    }
}

/// Reads all events; returns the error at their end.
fn read(watch: &OwnedFd, names: &mut Vec<OsString>) -> io::Error {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map_or(&[][..], |name| name.to_bytes());
                names.push(OsStr::from_bytes(name).to_owned());
            }
            Err(error) => return error.into(),
        }
    }
}

#[expect(unsafe_code, reason = "the descriptor is owned by the registration, as the runtime requires")]
fn register(watch: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor refers to the same open file until it is dropped, which the runtime sees.
    Ok(unsafe { AsyncFd::register_with_interest(watch, interest) }?)
}

/// A file of `/proc` whose changes the kernel reports as an exceptional condition, such as that of the host name.
#[derive(Debug)]
pub struct PolledFile(AsyncFd<OwnedFd>);

impl PolledFile {
    /// Changes from now on. Has to be called on the runtime.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(register(std::fs::File::open(path)?.into(), Interest::PRIORITY)?))
    }

    /// Waits for the next change.
    pub async fn changed(&mut self) -> io::Result<()> {
        self.0.ready(Interest::PRIORITY).await?.clear_ready();
        Ok(())
    }
}

/// Watches one file.
///
/// ```
/// use base::file_changes::FileChanges;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let directory = tempfile::tempdir()?;
/// let path = directory.path().join("ca.crt");
/// let mut changes = FileChanges::of(&path)?;
/// std::fs::write(&path, "new")?;
/// changes.changed().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FileChanges {
    watch: Inotify,
    path: PathBuf,
    /// Name of the file and of its target, in their directories.
    names: Vec<OsString>,
}

const IN_DIRECTORY: WatchFlags =
    WatchFlags::CLOSE_WRITE.union(WatchFlags::MOVED_TO).union(WatchFlags::CREATE).union(WatchFlags::DELETE);

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl FileChanges {
    /// Changes from now on. Has to be called on the runtime.
    pub fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let watch = Inotify::new()?;
        watch.add(directory(path), IN_DIRECTORY)?;
        let mut changes = Self { watch, path: path.to_owned(), names: vec![name] };
        changes.follow_target();
        Ok(changes)
    }

    /// Watches the file, which may be another one than before. A missing file is watched once it exists.
    fn follow_target(&mut self) {
        self.names.truncate(1);
        let _ = self.watch.add(&self.path, WatchFlags::CLOSE_WRITE);
        let Ok(target) = self.path.canonicalize() else { return };
        if target.file_name() != self.path.file_name() || target.parent() != self.path.parent() {
            let watched = self.watch.add(directory(&target), IN_DIRECTORY);
            self.names.extend(target.file_name().filter(|_| watched.is_ok()).map(OsStr::to_owned));
        }
    }

    /// Waits until the file has changed. Mounted volumes replace a link beside it; that counts, too.
    pub async fn changed(&mut self) -> io::Result<()> {
        let counts =
            |name: &OsString, names: &[OsString]| name.is_empty() || name == "..data" || names.contains(name);
        while !self.watch.names().await?.iter().any(|name| counts(name, &self.names)) {}
        tokio::time::sleep(SETTLE).await;
        self.follow_target();
        Ok(())
    }
}

/// Watches the files of a directory that are created, removed or written.
#[derive(Debug)]
pub struct DirectoryChanges(Inotify);

impl DirectoryChanges {
    /// Changes from now on. Has to be called on the runtime.
    pub fn of(directory: &Path) -> io::Result<Self> {
        let watch = Inotify::new()?;
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM;
        watch.add(directory, events)?;
        Ok(Self(watch))
    }

    /// Waits for the next change.
    pub async fn next(&mut self) {
        if self.0.names().await.is_err() {
            return tokio::time::sleep(POLL_INTERVAL).await;
        }
        tokio::time::sleep(COALESCE_DELAY).await;
        self.0.discard();
    }
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

    #[tokio::test]
    async fn changes_of_a_link_and_its_target_are_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (link, target) = (directory.path().join("resolv.conf"), directory.path().join("run/stub"));
        std::fs::create_dir(directory.path().join("run")).expect("created");
        std::fs::write(&target, "1").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        let mut changes = FileChanges::of(&link).expect("a watch");
        let limit = Duration::from_secs(10);
        crate::file::replace(&target, b"2", crate::file::PRIVATE).expect("replaced");
        tokio::time::timeout(limit, changes.changed()).await.expect("target replaced").expect("watched");
        std::fs::remove_file(&link).expect("removed");
        std::fs::write(&link, "3").expect("written");
        tokio::time::timeout(limit, changes.changed()).await.expect("link replaced").expect("watched");
    }

    #[tokio::test]
    async fn directory_change_is_reported() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("f");
        let mut changes = DirectoryChanges::of(directory.path()).expect("a watch");
        assert!(tokio::time::timeout(Duration::from_millis(50), changes.next()).await.is_err());
        let long = Duration::from_secs(60);
        for _ in 0..2 {
            std::fs::write(&file, "x").expect("written");
            tokio::time::timeout(long, changes.next()).await.expect("change on write");
        }
        std::fs::remove_file(&file).expect("removed");
        tokio::time::timeout(long, changes.next()).await.expect("change on removal");
    }
}
