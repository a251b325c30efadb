//! `fsGroup`: files that a pod's group may use.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// Deepest directory that is followed; deeper ones are left as they are.
const MAX_DEPTH: usize = 256;

/// Gives `path` and everything below to `group`: it may read and write what the owner may, new files inherit it.
pub fn give_to_group(path: &Path, group: u32, read_only: bool) -> io::Result<()> {
    give(path, group, read_only, 0)
}

/// Whether the top already belongs to the group as it should, so that the rest need not be looked at.
#[must_use]
pub fn is_given(path: &Path, group: u32) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.gid() == group && meta.permissions().mode() & 0o2070 == 0o2070)
}

fn give(path: &Path, group: u32, read_only: bool, depth: usize) -> io::Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    lchown(path, None, Some(group))?;
    if meta.file_type().is_symlink() {
        return Ok(());
    }
    let mut mode = meta.permissions().mode() & 0o7777;
    mode |= if read_only { 0o440 } else { 0o660 };
    if meta.is_dir() {
        mode |= 0o2110;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    if meta.is_dir() && depth < MAX_DEPTH {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), group, read_only, depth + 1)?;
        }
    }
    Ok(())
}
