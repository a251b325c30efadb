//! Noticing that a log grows or is rotated.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

/// How long to wait for a change before looking whether the container still runs.
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes of a file and of the directory it is in.
pub struct Changes {
    watch: AsyncFd<std::os::fd::OwnedFd>,
}

impl Changes {
    #[expect(unsafe_code, reason = "registering a descriptor with the event loop is unsafe in general")]
    pub fn of(path: &Path) -> io::Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&fd, path, inotify::WatchFlags::MODIFY)?;
        if let Some(directory) = path.parent() {
            inotify::add_watch(&fd, directory, inotify::WatchFlags::CREATE | inotify::WatchFlags::MODIFY)?;
        }
        // SAFETY: the descriptor is owned by what is registered, and stays the same file until it is dropped.
        let watch = unsafe { AsyncFd::register(fd)? };
        Ok(Self { watch })
    }

    /// The next change, or a while without one.
    pub async fn next(&mut self) {
        let waiting = async {
            let Ok(mut ready) = self.watch.readable_mut().await else { return };
            let mut buffer = [0_u8; 4096];
            while rustix::io::read(ready.get_inner(), &mut buffer).is_ok_and(|count| count > 0) {}
            ready.clear_ready();
        };
        let _ = tokio::time::timeout(PATIENCE, waiting).await;
    }

    /// Whether the path is another file now than the one being read.
    pub async fn was_rotated(&self, path: &Path, reading: &tokio::fs::File) -> bool {
        let (Ok(now), Ok(then)) = (tokio::fs::metadata(path).await, reading.metadata().await) else {
            return false;
        };
        now.ino() != then.ino()
    }
}
