//! `fsGroup` ownership of volumes.
//!
//! Other pods may change the volume concurrently, so the walk never resolves a path twice: every file is opened by
//! name relative to its parent, without following links, and changed by descriptor.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, chownat, fstat, openat};
use rustix::io::Errno;

/// Maximum directory depth; deeper files are left unchanged.
const MAX_DEPTH: usize = 256;

/// Changes the group of `path` and everything below: the group gets the owner's access, new files inherit it.
pub fn apply_fs_group(path: &Path, group: u32, read_only: bool) -> io::Result<()> {
    // The volume's own path belongs to the node, not to the pod; no call follows a link at its end.
    match open(CWD, path) {
        Ok(file) => change_group(&file, group, read_only, 0),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if the root directory already has the required ownership, so that the walk can be skipped.
#[must_use]
pub fn has_fs_group(path: &Path, group: u32) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.gid() == group && meta.permissions().mode() & 0o2070 == 0o2070)
}

/// Opens any file type, including links, with `O_PATH`.
fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn change_group(file: &OwnedFd, group: u32, read_only: bool, depth: usize) -> io::Result<()> {
    let found = fstat(file)?;
    chownat(file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind == FileType::Symlink {
        return Ok(());
    }
    let mut mode = found.st_mode & 0o7777;
    mode |= if read_only { 0o440 } else { 0o660 };
    if kind == FileType::Directory {
        mode |= 0o2110;
    }
    // An `O_PATH` descriptor is changed through its `/proc` name, which refers to the file itself.
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(&name, fs::Permissions::from_mode(mode))?;
    if kind == FileType::Directory && depth < MAX_DEPTH {
        let listed = openat(file, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        change_group_of_entries(listed.as_fd(), group, read_only, depth)?;
    }
    Ok(())
}

fn change_group_of_entries(
    directory: BorrowedFd<'_>,
    group: u32,
    read_only: bool,
    depth: usize,
) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match open(directory, name) {
            Ok(file) => change_group(&file, group, read_only, depth + 1)?,
            // Removed meanwhile.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn seen(path: &Path) -> (u32, u32) {
        let meta = fs::symlink_metadata(path).expect("a file");
        (meta.gid(), meta.permissions().mode() & 0o7777)
    }

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("skipped: chown needs root");
        }
        root
    }

    #[test]
    fn fs_group_sets_modes_without_following_links() {
        if !is_root() {
            return;
        }
        let parent = tempfile::tempdir().expect("a directory");
        let (volume, outside) = (parent.path().join("volume"), parent.path().join("outside"));
        fs::create_dir_all(volume.join("sub")).expect("directories");
        fs::create_dir(&outside).expect("a directory");
        for file in [volume.join("sub/file"), outside.join("file")] {
            fs::write(&file, "").expect("a file");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
        }
        symlink(&outside, volume.join("link")).expect("a link");
        symlink(outside.join("file"), volume.join("sub/link")).expect("a link");
        let before = seen(&outside);
        apply_fs_group(&volume, 4321, false).expect("group changed");
        assert_eq!(seen(&volume.join("sub/file")), (4321, 0o660));
        assert_eq!(seen(&volume.join("sub")).1 & 0o2770, 0o2770);
        assert!(has_fs_group(&volume, 4321));
        assert_eq!(seen(&outside), before);
        assert_eq!(seen(&outside.join("file")), (0, 0o600));
        assert_eq!(seen(&volume.join("link")).0, 4321, "the link itself");
        apply_fs_group(&parent.path().join("none"), 4321, false).expect("missing path");
    }

    /// A directory that another pod repeatedly swaps with a link.
    #[test]
    fn fs_group_directory_swapped_with_link_stays_in_volume() {
        if !is_root() {
            return;
        }
        let parent = tempfile::tempdir().expect("a directory");
        let (volume, outside) = (parent.path().join("volume"), parent.path().join("outside"));
        fs::create_dir_all(volume.join("a")).expect("directories");
        fs::create_dir(&outside).expect("a directory");
        fs::write(outside.join("file"), "").expect("a file");
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o700)).expect("a mode");
        symlink(&outside, volume.join("b")).expect("a link");
        let before = (seen(&outside), seen(&outside.join("file")));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let (a, b) = (volume.join("a"), volume.join("b"));
                    let _ = rustix::fs::renameat_with(CWD, &a, CWD, &b, rustix::fs::RenameFlags::EXCHANGE);
                }
            });
            for _ in 0..3000 {
                let _ = apply_fs_group(&volume, 4321, false);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!((seen(&outside), seen(&outside.join("file"))), before);
    }
}
