//! Watches a log for growth and rotation.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use base::file_changes::{Inotify, WatchFlags};

/// Wait limit before checking that the container is still running.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// Watch of a log file and its directory.
pub struct Changes(Inotify);

impl Changes {
    pub fn of(path: &Path) -> io::Result<Self> {
        let watch = Inotify::new()?;
        watch.add(path, WatchFlags::MODIFY)?;
        if let Some(directory) = path.parent() {
            watch.add(directory, WatchFlags::CREATE | WatchFlags::MODIFY)?;
        }
        Ok(Self(watch))
    }

    /// Waits for the next change or the timeout.
    pub async fn next(&mut self) {
        let _ = tokio::time::timeout(WAIT_LIMIT, self.0.names()).await;
    }

    /// Returns true if the path now refers to a different file than the one being read.
    pub async fn was_rotated(&self, path: &Path, reading: &tokio::fs::File) -> bool {
        let (Ok(now), Ok(then)) = (tokio::fs::metadata(path).await, reading.metadata().await) else {
            return false;
        };
        now.ino() != then.ino()
    }
}
