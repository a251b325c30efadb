//! Mounts, without following links out of the target tree.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
pub use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// One line of `/proc/self/mountinfo`, reduced to the fields in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub root: PathBuf,
    pub target: PathBuf,
    /// Device or other origin, such as `/dev/sda1`.
    pub source: PathBuf,
    pub filesystem: String,
    pub super_options: String,
}

/// Mounts visible to this process.
///
/// ```
/// let mounts = sys::mounts::list()?;
/// assert!(mounts.iter().any(|mount| mount.filesystem == "proc"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn list() -> io::Result<Vec<Mounted>> {
    Ok(std::fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mounted> {
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let mut right = right.split(' ');
    Some(Mounted {
        root: unescape(left.get(3)?),
        target: unescape(left.get(4)?),
        filesystem: right.next()?.to_owned(),
        source: unescape(right.next()?),
        super_options: right.next()?.to_owned(),
    })
}

/// Decodes octal escapes of the kernel, such as `\040` for a space.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let (mut out, bytes, mut at) = (Vec::new(), text.as_bytes(), 0);
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Mounts a file system. `data` are file system specific options.
pub fn mount(source: &str, target: &Path, kind: &str, flags: MountFlags, data: &str) -> io::Result<()> {
    let data = CString::new(data)?;
    let data: Option<&CStr> = if data.is_empty() { None } else { Some(&data) };
    Ok(rustix::mount::mount(source, target, kind, flags, data)?)
}

/// Bind mounts `source` at `target`, including submounts if `recursive`.
pub fn bind(source: &Path, target: &Path, recursive: bool) -> io::Result<()> {
    if recursive {
        rustix::mount::mount_bind_recursive(source, target)?;
    } else {
        rustix::mount::mount_bind(source, target)?;
    }
    Ok(())
}

/// Like a recursive [`bind`], for a source that was resolved before: fails if its path contains a link by now, which
/// would redirect the mount.
pub fn bind_resolved(source: &Path, target: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat2(CWD, source, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    bind(&Inside { file }.path(), target, true)
}

/// Sets the propagation type of a mount.
pub fn propagate(target: &Path, flags: MountPropagationFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_change(target, flags)?)
}

/// Unmounts lazily: a busy mount disappears when no longer used. A path without a mount is no error.
pub fn unmount(target: &Path) -> io::Result<()> {
    match rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Attributes of a bind mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountAttributes {
    pub read_only: bool,
    /// Recursive read-only.
    pub recursive_read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Adds attributes to a mount, keeping existing ones.
pub fn restrict(target: &Path, attributes: MountAttributes) -> io::Result<()> {
    let path = CString::new(std::os::unix::ffi::OsStrExt::as_bytes(target.as_os_str()))?;
    set_attributes(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW, attributes)
}

/// Adds attributes to the mount whose root is `mount`. Resolves no path.
pub fn restrict_opened(mount: BorrowedFd<'_>, attributes: MountAttributes) -> io::Result<()> {
    set_attributes(mount.as_raw_fd(), c"", libc::AT_EMPTY_PATH, attributes)
}

#[expect(unsafe_code, reason = "mount_setattr has no wrapper")]
fn set_attributes(
    directory: libc::c_int,
    path: &CStr,
    flags: libc::c_int,
    attributes: MountAttributes,
) -> io::Result<()> {
    const RDONLY: u64 = 1;
    const NOSUID: u64 = 2;
    const NODEV: u64 = 4;
    const NOEXEC: u64 = 8;
    let mut set = 0;
    for (wanted, bit) in [
        (attributes.read_only || attributes.recursive_read_only, RDONLY),
        (attributes.no_suid, NOSUID),
        (attributes.no_dev, NODEV),
        (attributes.no_exec, NOEXEC),
    ] {
        set |= if wanted { bit } else { 0 };
    }
    let attr = MountAttr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let recursive = if attributes.recursive_read_only { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: path and structure are alive during the call, and the size given is the structure's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags | recursive,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Detached copy of the mount at `resolved`, including submounts if `recursive`.
pub fn clone_tree(resolved: &Inside, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(&resolved.file, "", flags)?)
}

/// Attaches a detached mount at `resolved`. Resolves no path.
pub fn attach(tree: BorrowedFd<'_>, resolved: &Inside) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", &resolved.file, "", flags)?)
}

/// Mounts a tmpfs at `path` unless something is mounted there, with `noswap` if the kernel supports it.
pub fn tmpfs(path: &Path, mode: u32) -> io::Result<()> {
    if is_mount_point(path)? {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    // `noswap` requires Linux 6.4.
    mount("tmpfs", path, "tmpfs", flags, &format!("mode={mode:o},noswap"))
        .or_else(|_| mount("tmpfs", path, "tmpfs", flags, &format!("mode={mode:o}")))
}

/// Reports whether `path` is a mount point, including bind mounts of the same file system.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, StatxFlags::BASIC_STATS)?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Detached, empty, read-only tmpfs.
pub fn empty_tree() -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "tmpfs")?;
    fsconfig_set_string(&context, "size", "0k")?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}

/// ID-maps a detached mount to a user namespace: IDs on disk are those inside the namespace.
#[expect(unsafe_code, reason = "mount_setattr has no wrapper")]
pub fn map_users(tree: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let userns_fd = u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?;
    let attr = MountAttr { attr_set: IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    // SAFETY: the empty path and the structure are alive during the call, and the size given is the structure's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A container-controlled path, resolved as if `root` were `/`: links and `..` cannot leave it.
#[derive(Debug)]
pub struct Inside {
    file: OwnedFd,
}

impl Inside {
    /// Path of this process that refers to the resolved file, independent of later renames.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The resolved file. Its metadata requires no path.
    pub fn metadata(&self) -> io::Result<rustix::fs::Stat> {
        Ok(rustix::fs::fstat(&self.file)?)
    }

    /// Magic number of the file system of the resolved file.
    pub fn filesystem(&self) -> io::Result<u64> {
        filesystem(self.file.as_fd())
    }
}

impl AsFd for Inside {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Magic number of the file system of an open file.
pub fn filesystem(file: BorrowedFd<'_>) -> io::Result<u64> {
    // The field type differs between architectures; all magic numbers fit into 32 bits.
    Ok(u64::try_from(rustix::fs::fstatfs(file)?.f_type).map_err(io::Error::other)? & 0xffff_ffff)
}

fn resolve(root: &File, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let relative: PathBuf = path.components().filter(|part| !matches!(part, Component::RootDir)).collect();
    let relative = if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative };
    let flags = flags | OFlags::CLOEXEC;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(root, relative, flags, Mode::empty(), how)?)
}

/// Returns true if `path` inside `root` contains a link.
#[must_use]
pub fn is_linked(root: &File, path: &Path) -> bool {
    let relative: PathBuf = path.components().filter(|part| !matches!(part, Component::RootDir)).collect();
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let opened = rustix::fs::openat2(root, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how);
    opened.is_err_and(|error| error == rustix::io::Errno::LOOP)
}

/// Resolves `path` inside `root`; it must exist.
pub fn inside(root: &File, path: &Path) -> io::Result<Inside> {
    resolve(root, path, OFlags::PATH).map(|file| Inside { file })
}

/// Resolves `path` inside `root`, creating missing directories, and as last component a directory or an empty file.
pub fn make_inside(root: &File, path: &Path, directory: bool) -> io::Result<Inside> {
    if let Ok(found) = inside(root, path) {
        return Ok(found);
    }
    let parts: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(Ok(name)),
            Component::ParentDir => Some(Err(io::Error::from(io::ErrorKind::InvalidInput))),
            _ => None,
        })
        .collect::<io::Result<_>>()?;
    let Some((last, parents)) = parts.split_last() else { return inside(root, path) };
    let mut so_far = PathBuf::new();
    let mut here = resolve(root, Path::new("."), OFlags::PATH | OFlags::DIRECTORY)?;
    for name in parents {
        so_far.push(name);
        here = match resolve(root, &so_far, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                rustix::fs::mkdirat(here.as_fd(), *name, Mode::from_raw_mode(0o755))?;
                resolve(root, &so_far, OFlags::PATH | OFlags::DIRECTORY)?
            }
            Err(error) => return Err(error),
        };
    }
    if directory {
        rustix::fs::mkdirat(here.as_fd(), *last, Mode::from_raw_mode(0o755))?;
    } else {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(here.as_fd(), *last, flags, Mode::from_raw_mode(0o644))?;
    }
    inside(root, path)
}

/// Opens a directory as the root for [`inside`].
pub fn open_root(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_parse() {
        let line = r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(
            parse(line),
            Some(Mounted {
                root: "/mnt1".into(),
                target: "/mnt 2".into(),
                source: "/dev/root".into(),
                filesystem: "ext3".into(),
                super_options: "rw,errors=continue".into()
            })
        );
        assert_eq!(parse("nonsense"), None);
        assert!(list().unwrap().iter().any(|mounted| mounted.target == Path::new("/")));
    }

    #[test]
    fn resolved_links_stay_in_root() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink("../../../..", dir.path().join("up")).unwrap();
        let root = open_root(dir.path()).unwrap();
        assert!(
            make_inside(&root, Path::new("/out/file"), false).is_err(),
            "the link target is outside of the root"
        );
        make_inside(&root, Path::new("/up/file"), false).unwrap();
        assert!(dir.path().join("file").exists(), "the root's parent is the root");
        make_inside(&root, Path::new("/a/b/c"), true).unwrap();
        assert!(dir.path().join("a/b/c").is_dir());
        assert!(make_inside(&root, Path::new("/x/../y"), true).is_err());
        assert!(is_linked(&root, Path::new("/up")) && is_linked(&root, Path::new("/up/a")));
        assert!(!is_linked(&root, Path::new("/a/b")) && !is_linked(&root, Path::new("/none")));
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
