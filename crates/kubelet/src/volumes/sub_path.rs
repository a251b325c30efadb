//! `subPath` mounts: opens each path component so that no symbolic link leads out of the volume.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat2};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

/// Opens `part` of `volume`, creating missing directories, and bind mounts it at `target`, which is then safe to pass
/// to the runtime: later changes within the volume cannot redirect it.
pub fn bind(volume: &Path, part: &str, target: &Path) -> io::Result<()> {
    let opened = open_within(volume, part)?;
    let through = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let is_directory = fs::metadata(&through)?.is_dir();
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if is_directory {
        fs::create_dir_all(target)?;
    } else {
        fs::OpenOptions::new().create(true).append(true).open(target)?;
    }
    release_one(target)?;
    mount_bind(&through, target)?;
    Ok(())
}

/// Walks down from `volume`; symbolic links are followed only within the volume. Missing directories get the volume's
/// mode, so that containers with write access to the volume have it here.
fn open_within(volume: &Path, part: &str) -> io::Result<OwnedFd> {
    for component in Path::new(part).components() {
        if !matches!(component, Component::Normal(_) | Component::CurDir) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid subPath {part:?}")));
        }
    }
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mode = Mode::from_raw_mode(fstat(&root)?.st_mode & 0o7777);
    let mut so_far = PathBuf::new();
    let names: Vec<_> = Path::new(part).components().filter(|c| matches!(c, Component::Normal(_))).collect();
    let mut current = openat2(&root, ".", flags, Mode::empty(), within)?;
    for name in names {
        so_far.push(name.as_os_str());
        match openat2(&root, &so_far, flags, Mode::empty(), within) {
            Ok(opened) => current = opened,
            Err(rustix::io::Errno::NOENT) => {
                mkdirat(&current, name.as_os_str(), mode)?;
                // The directory may have been replaced meanwhile: opened without following links, and never outside
                // of the volume.
                let made = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                current = openat2(&root, &so_far, made, Mode::empty(), within)?;
                // `mkdirat` applied the umask of the process.
                fchmod(&current, mode)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(current)
}

/// Reads a file of a volume if it exists, without leaving the volume; fails above `most` bytes.
pub fn read(volume: &Path, part: &str, most: u64) -> io::Result<Option<String>> {
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(&root, part, flags, Mode::empty(), within) {
        Ok(opened) => fs::File::from(opened),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    if !file.metadata()?.is_file() {
        return Err(wrong("not a file"));
    }
    let mut text = String::new();
    file.take(most.saturating_add(1)).read_to_string(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > most {
        Err(wrong("too large"))
    } else {
        Ok(Some(text))
    }
}

/// Unmounts an earlier bind mount, if any.
fn release_one(target: &Path) -> io::Result<()> {
    loop {
        match unmount(target, UnmountFlags::DETACH) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Unmounts all bind mounts below a pod's subpath directory and removes it.
pub fn release_all(directory: &Path) -> io::Result<()> {
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries.flatten() {
            release_one(&entry.path())?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
        }
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn sub_path_link_out_of_volume_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("v");
        fs::create_dir_all(volume.join("inside")).expect("directories");
        symlink("/etc", volume.join("absolute")).expect("a link");
        symlink("../..", volume.join("up")).expect("a link");
        symlink("inside", volume.join("good")).expect("a link");
        for bad in ["absolute", "absolute/passwd", "up", "up/x", "../x", "inside/../../x"] {
            assert!(open_within(&volume, bad).is_err(), "{bad}");
        }
        assert!(open_within(&volume, "good").is_ok());
        assert!(open_within(&volume, "inside/new/deep").is_ok());
        assert!(volume.join("inside/new/deep").is_dir());
    }

    #[test]
    fn sub_path_missing_directories_get_volume_mode() {
        use std::os::unix::fs::PermissionsExt;
        for mode in [0o777, 0o2775, 0o1777, 0o700] {
            let directory = tempfile::tempdir().expect("a directory");
            let volume = directory.path().join("v");
            fs::create_dir_all(volume.join("there")).expect("directories");
            let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
            set(&volume.join("there"), 0o711).expect("a mode");
            set(&volume, mode).expect("a mode");
            drop(open_within(&volume, "there/new/deep").expect("opened"));
            let mode_of = |part: &str| {
                fs::metadata(volume.join(part)).expect("a directory").permissions().mode() & 0o7777
            };
            assert_eq!(mode_of("there"), 0o711);
            assert_eq!((mode_of("there/new"), mode_of("there/new/deep")), (mode, mode));
        }
    }

    #[test]
    fn sub_path_file_read_stays_in_volume() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("v");
        fs::create_dir_all(volume.join("d")).expect("a directory");
        fs::write(directory.path().join("secret"), "hidden").expect("a file");
        fs::write(volume.join("d/f"), "text").expect("a file");
        std::os::unix::fs::symlink("d/f", volume.join("inside")).expect("a link");
        std::os::unix::fs::symlink("../secret", volume.join("outside")).expect("a link");
        for (part, want) in [("d/f", Some("text")), ("inside", Some("text")), ("none", None)] {
            assert_eq!(read(&volume, part, 4).expect("read").as_deref(), want, "{part}");
        }
        for part in ["outside", "../secret", "d"] {
            assert!(read(&volume, part, 100).is_err(), "{part}");
        }
        assert!(read(&volume, "d/f", 3).is_err(), "too large");
    }
}
