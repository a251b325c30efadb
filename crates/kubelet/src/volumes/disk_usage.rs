//! Disk usage of a directory.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of files counted; larger directories exceed any limit anyway.
const MAX_ENTRIES: u64 = 10_000_000;

/// Bytes and files of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Counts usage below a directory: other mounted file systems are excluded, hard links count once. The directory
/// itself counts as one inode but no bytes: an empty one has 0 bytes.
#[must_use]
pub fn disk_usage(directory: &Path) -> DiskUsage {
    let Ok(top) = fs::symlink_metadata(directory) else { return DiskUsage::default() };
    let mut used = DiskUsage { bytes: 0, inodes: 1 };
    let mut pending: Vec<PathBuf> = vec![directory.to_owned()];
    let mut seen = HashSet::new();
    while let Some(path) = pending.pop() {
        let Ok(listed) = fs::read_dir(&path) else { continue };
        for entry in listed.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.dev() != top.dev() || (meta.nlink() > 1 && !meta.is_dir() && !seen.insert(meta.ino())) {
                continue;
            }
            used.inodes += 1;
            if used.inodes > MAX_ENTRIES {
                return DiskUsage { bytes: u64::MAX, ..used };
            }
            used.bytes = used.bytes.saturating_add(meta.blocks().saturating_mul(512));
            if meta.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_usage_counts_allocated_blocks() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(disk_usage(&directory.path().join("none")), DiskUsage::default());
        fs::write(directory.path().join("f"), vec![1; 100_000]).expect("a file");
        fs::hard_link(directory.path().join("f"), directory.path().join("g")).expect("a link");
        let used = disk_usage(directory.path());
        assert!((100_000..200_000).contains(&used.bytes), "{used:?}");
        assert_eq!(used.inodes, 2);
    }
}
