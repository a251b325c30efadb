//! The container's root filesystem, built in a separate mount namespace: its mounts are never visible on the host, and
//! none remain there.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use sys::cgroups::Hierarchy;
use sys::mounts::{self, MountAttributes, MountFlags, MountPropagationFlags};

use super::spec::{Device, DeviceAttributes, Mount, Propagation, Root, Source, Spec, UserMap};
use super::{ShimError, Step, failure, hooks, mount_target};

/// The devices of every container: name, major, minor.
const DEVICES: &[(&str, u32, u32)] =
    &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: &[(&str, &str)] = &[
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// Mounts everything below `directory/rootfs` and makes it the root of this process, which has its own mount namespace.
pub(super) fn build(directory: &Path, spec: &Spec, users: Option<&Users<'_>>) -> Result<(), ShimError> {
    let target = directory.join("rootfs");
    // Mounts with bidirectional propagation are cloned while they are still peers of the host's.
    let mut shared = Vec::new();
    for mount in spec.mounts.iter().filter(|mount| mount.propagation == Propagation::Bidirectional) {
        if let Source::Bind(source) = &mount.source {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::AT_RECURSIVE
                | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
                | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let tree = open_tree(CWD, source, flags).step(|| format!("clone {}", source.display()))?;
            shared.push((mount.target.clone(), tree));
        }
    }
    mounts::propagate(Path::new("/"), MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .step(|| "make the mounts private".to_owned())?;
    overlay(&spec.root, Some(directory), &target, users)?;
    mounts::propagate(&target, MountPropagationFlags::PRIVATE)
        .step(|| "make the root mount private".to_owned())?;
    let root = mounts::open_root(&target).step(|| "open the root".to_owned())?;
    // Paths still refer to the host, so these are the host's /proc and the root's path in the kernel.
    let root_path = kernel_path(root.as_fd()).step(|| "find the root".to_owned())?;
    for mount in &spec.mounts {
        let moved = shared.iter().position(|(resolved, _)| *resolved == mount.target);
        match moved {
            Some(at) => {
                let (_, tree) = shared.swap_remove(at);
                let resolved = prepare(&root, &mount.target, is_directory(&mount.source))?;
                mount_target::check(&root_path, &resolved, mount)?;
                mounts::attach(tree.as_fd(), &resolved)
                    .step(|| format!("mount {}", mount.target.display()))?;
                restrict(&root, mount)?;
            }
            None => add(&root, &root_path, mount, directory, users)?,
        }
    }
    let devices =
        if spec.privileged { host_devices().step(|| "list devices".to_owned())? } else { Vec::new() };
    make_devices(&root, devices.iter().chain(&spec.devices), users)?;
    hooks::run(directory, &spec.hooks)?;
    pivot(&target)?;
    let root = mounts::open_root(Path::new("/")).step(|| "open the root".to_owned())?;
    for path in &spec.masked_paths {
        mask(&root, path).step(|| format!("mask {}", path.display()))?;
    }
    for path in &spec.read_only_paths {
        protect(&root, path).step(|| format!("protect {}", path.display()))?;
    }
    if spec.root.read_only {
        mounts::restrict(Path::new("/"), MountAttributes { read_only: true, ..Default::default() })
            .step(|| "make the root read-only".to_owned())?;
    }
    Ok(())
}

/// User mapping of the pod, and its user namespace.
pub(super) struct Users<'a> {
    pub map: &'a UserMap,
    pub namespace: File,
}

/// Bind-mounts `source` at `target` with its files mapped to the pod's users (idmapped mount).
fn bind_mapped(source: &Path, target: &Path, users: &Users<'_>, recursive: bool) -> io::Result<()> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = open_tree(CWD, source, flags)?;
    mounts::map_users(tree.as_fd(), users.namespace.as_fd())?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(tree, "", CWD, target, how)?)
}

/// Idmapped mounts of the layers for the pod's users; returns their directory and their names in it.
fn map_layers(root: &Root, beside: &Path, users: &Users<'_>) -> Result<Root, ShimError> {
    let store = beside.join("mapped");
    let mut layers = Vec::new();
    for (at, layer) in root.layers.iter().enumerate() {
        let resolved = store.join(at.to_string());
        std::fs::create_dir_all(&resolved).step(|| format!("make {}", resolved.display()))?;
        bind_mapped(&root.store.join(layer), &resolved, users, false)
            .step(|| "map a layer's files to the pod's users".to_owned())?;
        layers.push(at.to_string());
    }
    Ok(Root { store, layers, read_only: root.read_only })
}

/// Mounts layers at `target`; with an upper directory they are writable.
pub(super) fn overlay(
    root: &Root,
    changes: Option<&Path>,
    target: &Path,
    users: Option<&Users<'_>>,
) -> Result<(), ShimError> {
    let mapped = match users {
        Some(users) => {
            if let Some(changes) = changes {
                let (uid, gid) = users.map.root()?;
                std::os::unix::fs::chown(changes.join("upper"), Some(uid), Some(gid))
                    .step(|| "change the owner of the root".to_owned())?;
            }
            Some(map_layers(root, changes.unwrap_or(target), users)?)
        }
        None => None,
    };
    let root = mapped.as_ref().unwrap_or(root);
    // Paths relative to the store keep the options below the kernel's limit of one page.
    std::env::set_current_dir(&root.store).step(|| format!("enter {}", root.store.display()))?;
    let lower = root.layers.join(":");
    let mut data = match (root.layers.as_slice(), changes) {
        ([], Some(changes)) => {
            return mounts::bind(&changes.join("upper"), target, false).step(|| "mount the root".to_owned());
        }
        ([], None) => return Err(failure("mount an image", "it has no layers")),
        ([one], None) => {
            mounts::bind(&root.store.join(one), target, false).step(|| "mount an image".to_owned())?;
            return mounts::restrict(target, MountAttributes { read_only: true, ..Default::default() })
                .step(|| "mount an image".to_owned());
        }
        (_, None) => format!("lowerdir={lower}"),
        (_, Some(changes)) => {
            let (upper, work) = (changes.join("upper"), changes.join("work"));
            format!("lowerdir={lower},upperdir={},workdir={}", escape(&upper), escape(&work))
        }
    };
    data.push_str(",index=off");
    let mounted = mounts::mount("overlay", target, "overlay", MountFlags::empty(), &data);
    std::env::set_current_dir("/").step(|| "leave".to_owned())?;
    mounted.step(|| "mount the root".to_owned())
}

fn escape(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
}

fn is_directory(source: &Source) -> bool {
    match source {
        Source::Bind(path) => path.is_dir(),
        _ => true,
    }
}

fn prepare(root: &File, target: &Path, directory: bool) -> Result<mounts::Inside, ShimError> {
    mounts::make_inside(root, target, directory).step(|| format!("make mount point {}", target.display()))
}

fn add(
    root: &File,
    root_path: &Path,
    mount: &Mount,
    directory: &Path,
    users: Option<&Users<'_>>,
) -> Result<(), ShimError> {
    // If an image has a link here, masks and devices would be mounted elsewhere than programs look.
    if matches!(mount.source, Source::Kernel { .. } | Source::Cgroups)
        && mounts::is_linked(root, &mount.target)
    {
        return Err(failure(
            &format!("mount {}", mount.target.display()),
            "it must be an ordinary directory in the image, not a symbolic link",
        ));
    }
    let resolved = prepare(root, &mount.target, is_directory(&mount.source))?;
    mount_target::check(root_path, &resolved, mount)?;
    let step = || format!("mount {}", mount.target.display());
    match &mount.source {
        Source::Bind(source) => {
            match users.filter(|_| mount.mapped) {
                Some(users) => bind_mapped(source, &resolved.path(), users, true),
                None => mounts::bind_resolved(source, &resolved.path()),
            }
            .step(|| format!("mount {} at {}", source.display(), mount.target.display()))?;
        }
        Source::Kernel { kind, options, no_exec, no_suid, no_dev } => {
            let mut flags = MountFlags::empty();
            for (wanted, flag) in
                [(no_exec, MountFlags::NOEXEC), (no_suid, MountFlags::NOSUID), (no_dev, MountFlags::NODEV)]
            {
                if *wanted {
                    flags |= flag;
                }
            }
            if mount.read_only {
                flags |= MountFlags::RDONLY;
            }
            let options = owned(kind, options, users)?;
            return mounts::mount(kind, &resolved.path(), kind, flags, &options).step(step);
        }
        Source::Cgroups => return cgroups(root, mount),
        Source::Layers { root: layers, sub_path } => {
            let aside = directory.join("image");
            std::fs::create_dir_all(&aside).step(step)?;
            overlay(layers, None, &aside, users)?;
            let image = mounts::open_root(&aside).step(step)?;
            let part = mounts::inside(&image, sub_path)
                .step(|| format!("find {} in the image", sub_path.display()))?;
            let bound = mounts::bind(&part.path(), &resolved.path(), false).step(step);
            drop(part);
            drop(image);
            mounts::unmount(&aside).step(step)?;
            bound?;
        }
    }
    restrict(root, mount)
}

/// Options of a kernel filesystem whose files belong to the pod's root.
fn owned(kind: &str, options: &str, users: Option<&Users<'_>>) -> Result<String, ShimError> {
    let Some(users) = users else { return Ok(options.to_owned()) };
    let (uid, gid) = users.map.root()?;
    Ok(match kind {
        "tmpfs" => format!("{options},uid={uid},gid={gid}"),
        // The `tty` group.
        "devpts" => options.replace("gid=5", &format!("gid={}", users.map.gid(5).unwrap_or(gid))),
        _ => options.to_owned(),
    })
}

/// Applies attributes that a bind mount takes only after it was created.
fn restrict(root: &File, mount: &Mount) -> Result<(), ShimError> {
    let step = || format!("restrict mount {}", mount.target.display());
    let resolved = mounts::inside(root, &mount.target).step(step)?;
    let flags = match mount.propagation {
        Propagation::Private => Some(MountPropagationFlags::PRIVATE),
        Propagation::HostToContainer => Some(MountPropagationFlags::DOWNSTREAM),
        Propagation::Bidirectional => None,
    };
    if let Some(flags) = flags {
        mounts::propagate(&resolved.path(), flags | MountPropagationFlags::REC).step(step)?;
    }
    if mount.read_only || mount.recursive_read_only {
        let attributes = MountAttributes {
            read_only: true,
            recursive_read_only: mount.recursive_read_only,
            ..Default::default()
        };
        mounts::restrict(&target_of(&resolved), attributes).step(step)?;
    }
    Ok(())
}

/// The kernel does not follow a link when setting attributes, so the link of the descriptor is read here.
fn target_of(resolved: &mounts::Inside) -> PathBuf {
    std::fs::read_link(resolved.path()).unwrap_or_else(|_| resolved.path())
}

/// In a cgroup namespace the mounts begin at the container's own cgroup.
fn cgroups(root: &File, mount: &Mount) -> Result<(), ShimError> {
    let step = || "mount the control groups".to_owned();
    let resolved = mounts::inside(root, &mount.target).step(step)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let read_only = if mount.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    match Hierarchy::detect().step(step)? {
        Hierarchy::V2(_) => {
            mounts::mount("cgroup", &resolved.path(), "cgroup2", flags | read_only, "").step(step)
        }
        Hierarchy::V1(controllers) => {
            mounts::mount("tmpfs", &resolved.path(), "tmpfs", flags, "mode=755,size=1m").step(step)?;
            drop(resolved);
            flags |= read_only;
            let mut directories: Vec<&PathBuf> = controllers.values().collect();
            directories.sort();
            directories.dedup();
            for directory in directories {
                let together: Vec<&str> = controllers
                    .iter()
                    .filter(|(_, resolved)| *resolved == directory)
                    .map(|(controller, _)| controller.as_str())
                    .collect();
                let Some(name) = directory.file_name() else { continue };
                let resolved = prepare(root, &mount.target.join(name), true)?;
                mounts::mount("cgroup", &resolved.path(), "cgroup", flags, &together.join(",")).step(step)?;
            }
            if mount.read_only {
                let resolved = mounts::inside(root, &mount.target).step(step)?;
                mounts::restrict(
                    &target_of(&resolved),
                    MountAttributes { read_only: true, ..Default::default() },
                )
                .step(step)?;
            }
            Ok(())
        }
    }
}

fn make_devices<'a>(
    root: &File,
    extra: impl Iterator<Item = &'a Device>,
    users: Option<&Users<'_>>,
) -> Result<(), ShimError> {
    rustix::process::umask(Mode::empty());
    let owner = users.map_or(Ok((0, 0)), |users| users.map.root())?;
    for (name, major, minor) in DEVICES {
        let device = rustix::fs::makedev(*major, *minor);
        node(root, &Path::new("/dev").join(name), FileType::CharacterDevice, 0o666, device, owner)?;
    }
    for device in extra {
        let step = || format!("stat device {}", device.host.display());
        let found = std::fs::metadata(&device.host).step(step)?;
        let kind = match found.file_type() {
            kind if kind.is_char_device() => FileType::CharacterDevice,
            kind if kind.is_block_device() => FileType::BlockDevice,
            _ => return Err(failure(&step(), "it is not a device")),
        };
        let wanted = &device.attributes;
        let owner = match users {
            Some(_) => owner,
            None => (wanted.uid.unwrap_or(found.uid()), wanted.gid.unwrap_or(found.gid())),
        };
        let mode = wanted.mode.unwrap_or(found.mode() & 0o7777);
        node(root, &device.target, kind, mode, found.rdev(), owner)?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let resolved = prepare(root, Path::new("/dev"), true)?;
    for (to, name) in LINKS {
        match rustix::fs::symlinkat(*to, CWD, resolved.path().join(name)) {
            Err(rustix::io::Errno::EXIST) => {}
            other => other.step(|| format!("link {name}"))?,
        }
    }
    Ok(())
}

fn node(
    root: &File,
    path: &Path,
    kind: FileType,
    mode: u32,
    device: u64,
    owner: (u32, u32),
) -> Result<(), ShimError> {
    let step = || format!("make device {}", path.display());
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failure(&step(), "no name"));
    };
    let parent = prepare(root, parent, true)?;
    let resolved = parent.path().join(name);
    match rustix::fs::mknodat(CWD, &resolved, kind, Mode::from_raw_mode(mode), device) {
        Err(rustix::io::Errno::EXIST) => return Ok(()),
        other => other.step(step)?,
    }
    std::os::unix::fs::lchown(&resolved, Some(owner.0), Some(owner.1)).step(step)
}

/// All devices of the host, for privileged containers; terminals, message queues and shared memory are per container.
fn host_devices() -> io::Result<Vec<Device>> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/dev")];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let skipped = ["pts", "shm", "fd", "mqueue", "ptmx", "console"];
            if skipped.iter().any(|name| path == Path::new("/dev").join(name)) {
                continue;
            }
            if kind.is_dir() && left.len() < 1000 {
                left.push(path);
            } else if kind.is_char_device() || kind.is_block_device() {
                let (host, permissions) = (path.clone(), "rwm".to_owned());
                found.push(Device {
                    host,
                    target: path,
                    permissions,
                    attributes: DeviceAttributes::default(),
                });
            }
        }
    }
    Ok(found)
}

fn pivot(target: &Path) -> Result<(), ShimError> {
    let step = || "change the root".to_owned();
    std::env::set_current_dir(target).step(step)?;
    rustix::process::pivot_root(".", ".").step(step)?;
    // The old root is stacked on the new one now; it is detached with everything below it.
    rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH).step(step)?;
    std::env::set_current_dir("/").step(step)
}

/// Masks `path`. Only descriptors are used: this runs in the container's root, whose `/proc` is not trusted.
fn mask(root: &File, path: &Path) -> io::Result<()> {
    let resolved = match mounts::inside(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if FileType::from_raw_mode(resolved.metadata()?.st_mode) == FileType::Directory {
        return mounts::attach(mounts::empty_tree()?.as_fd(), &resolved);
    }
    // A volume may have replaced `/dev/null` by another file, which would be mounted over the masked path.
    let null = mounts::inside(root, Path::new("/dev/null"))?;
    let found = null.metadata()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice
        || found.st_rdev != rustix::fs::makedev(1, 3)
    {
        return Err(io::Error::other("/dev/null is not the null device"));
    }
    mounts::attach(mounts::clone_tree(&null, false)?.as_fd(), &resolved)
}

/// Makes `path` and the mount at it read-only, by descriptors as [`mask`] does.
fn protect(root: &File, path: &Path) -> io::Result<()> {
    let resolved = match mounts::inside(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let tree = mounts::clone_tree(&resolved, true)?;
    mounts::restrict_opened(tree.as_fd(), MountAttributes { read_only: true, ..Default::default() })?;
    mounts::attach(tree.as_fd(), &resolved)
}

/// The path of an open file in the kernel. Reads `/proc`, so it must be called before the root is changed.
pub(super) fn kernel_path(file: std::os::fd::BorrowedFd<'_>) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `test` on a thread with a separate mount namespace and a temporary directory.
    fn in_own_mounts(test: impl FnOnce(&Path) + Send) {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let joined = scope
                .spawn(|| {
                    sys::process::unshare(&[sys::process::Namespace::Mount]).unwrap();
                    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
                    mounts::propagate(Path::new("/"), private).unwrap();
                    test(directory.path());
                })
                .join();
            joined.unwrap();
        });
    }

    /// CVE-2025-31133, CVE-2025-52881: `/proc/self` is replaced by decoys for every descriptor.
    #[test]
    fn masks_decoys_over_proc_self_cover_real_paths() {
        in_own_mounts(|directory| {
            let root_path = directory.join("root");
            for part in ["dev", "tree/sub", "hidden"] {
                std::fs::create_dir_all(root_path.join(part)).unwrap();
            }
            std::fs::write(root_path.join("secret"), "secret").unwrap();
            std::fs::write(root_path.join("hidden/secret"), "secret").unwrap();
            let null = rustix::fs::makedev(1, 3);
            let mode = Mode::from_raw_mode(0o666);
            rustix::fs::mknodat(CWD, root_path.join("dev/null"), FileType::CharacterDevice, mode, null)
                .unwrap();
            let decoys = directory.join("decoys");
            std::fs::create_dir_all(decoys.join("d")).unwrap();
            std::fs::create_dir_all(decoys.join("fd")).unwrap();
            for fd in 0..256 {
                std::os::unix::fs::symlink("/proc/self/d", decoys.join(format!("fd/{fd}"))).unwrap();
            }
            let root = mounts::open_root(&root_path).unwrap();
            // In this mount namespace every process sees the decoys.
            let own = std::fs::read_link("/proc/self").unwrap();
            mounts::bind(&decoys, &Path::new("/proc").join(own), false).unwrap();
            mask(&root, Path::new("/secret")).unwrap();
            mask(&root, Path::new("/hidden")).unwrap();
            protect(&root, Path::new("/tree")).unwrap();
            assert_eq!(std::fs::read(root_path.join("secret")).unwrap(), b"");
            assert_eq!(std::fs::read_dir(root_path.join("hidden")).unwrap().count(), 0);
            let written = std::fs::write(root_path.join("tree/sub/file"), "x");
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
            // A null device that a volume has replaced is rejected.
            std::fs::remove_file(root_path.join("dev/null")).unwrap();
            std::fs::write(root_path.join("dev/null"), "forged").unwrap();
            assert!(mask(&root, Path::new("/tree/sub")).is_ok(), "directories need no device");
            assert!(mask(&root, Path::new("/secret")).is_err());
        });
    }
}
