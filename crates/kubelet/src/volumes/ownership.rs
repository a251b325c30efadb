//! `fsGroup`: files that a pod's group may use.
//!
//! Other pods may change the volume meanwhile, so the walk never resolves a path again: every file is opened by its name
//! in its parent, without following links, and changed by descriptor.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, chownat, fstat, openat};
use rustix::io::Errno;

/// Deepest directory that is followed; deeper ones are left as they are.
const MAX_DEPTH: usize = 256;

/// Gives `path` and everything below to `group`: it may read and write what the owner may, new files inherit it.
pub fn give_to_group(path: &Path, group: u32, read_only: bool) -> io::Result<()> {
    // The volume's own path is the node's, not the pod's; a link at its end is followed by none of the calls.
    match open(CWD, path) {
        Ok(file) => give(&file, group, read_only, 0),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the top already belongs to the group as it should, so that the rest need not be looked at.
#[must_use]
pub fn is_given(path: &Path, group: u32) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.gid() == group && meta.permissions().mode() & 0o2070 == 0o2070)
}

/// Opens whatever is there, also a link, without reading from it.
fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn give(file: &OwnedFd, group: u32, read_only: bool, depth: usize) -> io::Result<()> {
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
    // What is opened for its path only is changed through the name of the descriptor, which leads to the file itself.
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(&name, fs::Permissions::from_mode(mode))?;
    if kind == FileType::Directory && depth < MAX_DEPTH {
        let listed = openat(file, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        give_entries(listed.as_fd(), group, read_only, depth)?;
    }
    Ok(())
}

fn give_entries(directory: BorrowedFd<'_>, group: u32, read_only: bool, depth: usize) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match open(directory, name) {
            Ok(file) => give(&file, group, read_only, depth + 1)?,
            // Removed since.
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
            println!("skipped: giving files away needs root");
        }
        root
    }

    #[test]
    fn volume_given_to_group_has_its_modes_and_links_are_not_followed() {
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
        give_to_group(&volume, 4321, false).expect("given");
        assert_eq!(seen(&volume.join("sub/file")), (4321, 0o660));
        assert_eq!(seen(&volume.join("sub")).1 & 0o2770, 0o2770);
        assert!(is_given(&volume, 4321));
        assert_eq!(seen(&outside), before);
        assert_eq!(seen(&outside.join("file")), (0, 0o600));
        assert_eq!(seen(&volume.join("link")).0, 4321, "the link itself");
        give_to_group(&parent.path().join("none"), 4321, false).expect("nothing to give");
    }

    /// A directory that another pod exchanges for a link, again and again.
    #[test]
    fn directory_exchanged_for_link_does_not_lead_out() {
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
                let _ = give_to_group(&volume, 4321, false);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!((seen(&outside), seen(&outside.join("file"))), before);
    }
}
