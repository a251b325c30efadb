//! Backups: a directory with a snapshot of the store and the cluster's certificates.

use futures_util::future::BoxFuture;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use store::{Embedded, Revision};

use crate::{ClusterError, live_backup, storage};

const SNAPSHOT: &str = "store.snapshot";
const PKI: &str = "pki";
/// A restored store continues this far above the snapshot's revision, so that clients with later revisions of the
/// lost store must relist instead of mistaking new objects for known ones.
const SKIPPED_REVISIONS: u64 = 1_000_000;

/// Writes a backup of a running or stopped cluster in `data_dir` to the new directory `target`.
pub fn backup<'a>(data_dir: &'a Path, target: &'a Path) -> BoxFuture<'a, Result<Revision, ClusterError>> {
    Box::pin(async move {
        create_empty(target)?;
        let snapshot = target.join(SNAPSHOT);
        let revision = match live_backup::fetch(data_dir, &snapshot).await? {
            Some(revision) => revision,
            None => {
                let store = storage::open_existing(data_dir).await?;
                let revision = store.snapshot(&snapshot).await.map_err(ClusterError::Snapshot);
                store.close().await;
                revision?
            }
        };
        copy_directory(&data_dir.join(PKI), &target.join(PKI))?;
        Ok(revision)
    })
}

/// Creates a cluster from a backup in the empty or missing directory `data_dir`.
pub fn restore<'a>(source: &'a Path, data_dir: &'a Path) -> BoxFuture<'a, Result<Revision, ClusterError>> {
    Box::pin(async move {
        for needed in [SNAPSHOT, PKI] {
            if !source.join(needed).exists() {
                return Err(ClusterError::NotABackup { path: source.to_owned(), missing: needed });
            }
        }
        create_empty(data_dir)?;
        let (snapshot, directory) = (source.join(SNAPSHOT), data_dir.join(storage::DIRECTORY));
        let restored =
            tokio::task::spawn_blocking(move || Embedded::restore(&snapshot, &directory, SKIPPED_REVISIONS))
                .await;
        let revision = match restored {
            Ok(revision) => revision.map_err(ClusterError::Restore)?,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        copy_directory(&source.join(PKI), &data_dir.join(PKI))?;
        Ok(revision)
    })
}

/// Creates a directory that only its owner may enter; an existing one must be empty.
fn create_empty(path: &Path) -> Result<(), ClusterError> {
    let failed = |source| ClusterError::DataDirectory { path: path.to_owned(), source };
    match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ClusterError::Occupied { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Copies a directory of regular files with their modes, and syncs them.
fn copy_directory(from: &Path, to: &Path) -> Result<(), ClusterError> {
    let failed = |source| ClusterError::Copy { from: from.to_owned(), to: to.to_owned(), source };
    let copy = || -> io::Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            // Temporary files belong to a concurrent writer.
            let unfinished = entry.path().extension().is_some_and(|extension| extension == "tmp");
            if !unfinished && entry.file_type()?.is_file() {
                let target = to.join(entry.file_name());
                fs::copy(entry.path(), &target)?;
                fs::File::open(&target)?.sync_all()?;
            }
        }
        fs::File::open(to)?.sync_all()
    };
    copy().map_err(failed)
}
