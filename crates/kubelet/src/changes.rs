//! Changes of what a directory has in it, without looking again and again.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

/// How long to wait for more changes before they are told.
const SETTLE: Duration = Duration::from_millis(20);
/// How long to wait where the kernel does not tell.
const LATER: Duration = Duration::from_secs(5);

/// Tells when files of a directory come, go, or have been written.
pub struct Changes(AsyncFd<OwnedFd>);

impl Changes {
    pub fn of(directory: &Path) -> std::io::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let wanted = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::CLOSE_WRITE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MOVED_FROM;
        inotify::add_watch(&watch, directory, wanted)?;
        #[expect(deprecated, reason = "the descriptor is owned by what is returned, and open for as long")]
        let watched = AsyncFd::new(watch)?;
        Ok(Self(watched))
    }

    /// Waits for the next change.
    pub async fn next(&mut self) {
        let Ok(mut ready) = self.0.readable().await else { return tokio::time::sleep(LATER).await };
        ready.clear_ready();
        tokio::time::sleep(SETTLE).await;
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        while reader.next().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("f");
        let mut changes = Changes::of(directory.path()).expect("a watch");
        assert!(tokio::time::timeout(Duration::from_millis(50), changes.next()).await.is_err());
        let long = Duration::from_secs(60);
        for _ in 0..2 {
            std::fs::write(&file, "x").expect("written");
            tokio::time::timeout(long, changes.next()).await.expect("written is a change");
        }
        std::fs::remove_file(&file).expect("removed");
        tokio::time::timeout(long, changes.next()).await.expect("gone is a change");
    }
}
