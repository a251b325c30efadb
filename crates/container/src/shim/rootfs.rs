//! The container's view of the file system, made in a mount namespace of its own: nothing of it is ever
//! seen, or left behind, on the host.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use sys::cgroups::Hierarchy;
use sys::mounts::{self, Attributes, MountFlags, MountPropagationFlags};

use super::spec::{Device, Mount, Propagation, Root, Source, Spec, UserMap};
use super::{ShimError, Step, failure, mount_target};

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

/// Builds everything below `directory/rootfs` and makes it the root of this process, which has a mount namespace of
/// its own.
pub(super) fn build(directory: &Path, spec: &Spec, users: Option<&Users<'_>>) -> Result<(), ShimError> {
    let target = directory.join("rootfs");
    // Mounts that pass events back to the host are taken while they still are its peers.
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
        .step(|| "cut the mounts off the host's".to_owned())?;
    overlay(&spec.root, Some(directory), &target, users)?;
    mounts::propagate(&target, MountPropagationFlags::PRIVATE).step(|| "keep the root private".to_owned())?;
    let root = mounts::open_root(&target).step(|| "open the root".to_owned())?;
    // The host's names still hold, so these are the host's /proc and the root as the kernel names it.
    let root_path = kernel_path(root.as_fd()).step(|| "find the root".to_owned())?;
    for mount in &spec.mounts {
        let moved = shared.iter().position(|(place, _)| *place == mount.target);
        match moved {
            Some(at) => {
                let (_, tree) = shared.swap_remove(at);
                let place = prepare(&root, &mount.target, is_directory(&mount.source))?;
                mount_target::check(&root_path, &place, mount)?;
                mounts::attach(tree.as_fd(), &place).step(|| format!("mount {}", mount.target.display()))?;
                restrict(&root, mount)?;
            }
            None => add(&root, &root_path, mount, directory, users)?,
        }
    }
    let devices =
        if spec.privileged { host_devices().step(|| "list devices".to_owned())? } else { Vec::new() };
    make_devices(&root, devices.iter().chain(&spec.devices), users)?;
    pivot(&target)?;
    let root = mounts::open_root(Path::new("/")).step(|| "open the root".to_owned())?;
    for path in &spec.masked_paths {
        mask(&root, path).step(|| format!("mask {}", path.display()))?;
    }
    for path in &spec.read_only_paths {
        protect(&root, path).step(|| format!("protect {}", path.display()))?;
    }
    if spec.root.read_only {
        mounts::restrict(Path::new("/"), Attributes { read_only: true, ..Default::default() })
            .step(|| "make the root read-only".to_owned())?;
    }
    Ok(())
}

/// The pod's users: who they are, and their namespace.
pub(super) struct Users<'a> {
    pub map: &'a UserMap,
    pub namespace: File,
}

/// Makes `source` appear at `target` too, with its files belonging to the pod's users.
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

/// The layers once more, with their files belonging to the pod's users; where they are, and their names there.
fn map_layers(root: &Root, beside: &Path, users: &Users<'_>) -> Result<Root, ShimError> {
    let store = beside.join("mapped");
    let mut layers = Vec::new();
    for (at, layer) in root.layers.iter().enumerate() {
        let place = store.join(at.to_string());
        std::fs::create_dir_all(&place).step(|| format!("make {}", place.display()))?;
        bind_mapped(&root.store.join(layer), &place, users, false)
            .step(|| "map a layer's files to the pod's users".to_owned())?;
        layers.push(at.to_string());
    }
    Ok(Root { store, layers, read_only: root.read_only })
}

/// Mounts layers at `target`; with a directory for changes they can be written.
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
                    .step(|| "give the root to the pod".to_owned())?;
            }
            Some(map_layers(root, changes.unwrap_or(target), users)?)
        }
        None => None,
    };
    let root = mapped.as_ref().unwrap_or(root);
    // Names relative to the store keep the options below the one page that the kernel takes.
    std::env::set_current_dir(&root.store).step(|| format!("enter {}", root.store.display()))?;
    let lower = root.layers.join(":");
    let mut data = match (root.layers.as_slice(), changes) {
        ([], Some(changes)) => {
            return mounts::bind(&changes.join("upper"), target, false).step(|| "mount the root".to_owned());
        }
        ([], None) => return Err(failure("mount an image", "it has no layers")),
        ([one], None) => {
            mounts::bind(&root.store.join(one), target, false).step(|| "mount an image".to_owned())?;
            return mounts::restrict(target, Attributes { read_only: true, ..Default::default() })
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
    // Where an image has a link, masks and devices would come to lie elsewhere than where programs look.
    if matches!(mount.source, Source::Kernel { .. } | Source::Cgroups)
        && mounts::is_linked(root, &mount.target)
    {
        return Err(failure(
            &format!("mount {}", mount.target.display()),
            "it must be an ordinary directory in the image, not a symbolic link",
        ));
    }
    let place = prepare(root, &mount.target, is_directory(&mount.source))?;
    mount_target::check(root_path, &place, mount)?;
    let step = || format!("mount {}", mount.target.display());
    match &mount.source {
        Source::Bind(source) => {
            match users.filter(|_| mount.mapped) {
                Some(users) => bind_mapped(source, &place.path(), users, true),
                None => mounts::bind_resolved(source, &place.path()),
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
            return mounts::mount(kind, &place.path(), kind, flags, &options).step(step);
        }
        Source::Cgroups => return cgroups(root, mount),
        Source::Layers { root: layers, sub_path } => {
            let aside = directory.join("image");
            std::fs::create_dir_all(&aside).step(step)?;
            overlay(layers, None, &aside, users)?;
            let image = mounts::open_root(&aside).step(step)?;
            let part = mounts::inside(&image, sub_path)
                .step(|| format!("find {} in the image", sub_path.display()))?;
            let bound = mounts::bind(&part.path(), &place.path(), false).step(step);
            drop(part);
            drop(image);
            mounts::unmount(&aside).step(step)?;
            bound?;
        }
    }
    restrict(root, mount)
}

/// Options of a file system of the kernel's whose files belong to the pod's root.
fn owned(kind: &str, options: &str, users: Option<&Users<'_>>) -> Result<String, ShimError> {
    let Some(users) = users else { return Ok(options.to_owned()) };
    let (uid, gid) = users.map.root()?;
    Ok(match kind {
        "tmpfs" => format!("{options},uid={uid},gid={gid}"),
        // The group of terminals.
        "devpts" => options.replace("gid=5", &format!("gid={}", users.map.gid(5).unwrap_or(gid))),
        _ => options.to_owned(),
    })
}

/// What is true of a bind mount only after it was made.
fn restrict(root: &File, mount: &Mount) -> Result<(), ShimError> {
    let step = || format!("restrict mount {}", mount.target.display());
    let place = mounts::inside(root, &mount.target).step(step)?;
    let flags = match mount.propagation {
        Propagation::Private => Some(MountPropagationFlags::PRIVATE),
        Propagation::HostToContainer => Some(MountPropagationFlags::DOWNSTREAM),
        Propagation::Bidirectional => None,
    };
    if let Some(flags) = flags {
        mounts::propagate(&place.path(), flags | MountPropagationFlags::REC).step(step)?;
    }
    if mount.read_only || mount.recursive_read_only {
        let attributes = Attributes {
            read_only: true,
            recursive_read_only: mount.recursive_read_only,
            ..Default::default()
        };
        mounts::restrict(&target_of(&place), attributes).step(step)?;
    }
    Ok(())
}

/// The kernel does not follow a link for attributes, so the link of the descriptor is read here.
fn target_of(place: &mounts::Inside) -> PathBuf {
    std::fs::read_link(place.path()).unwrap_or_else(|_| place.path())
}

/// In a cgroup namespace the mounts begin at the container's own group.
fn cgroups(root: &File, mount: &Mount) -> Result<(), ShimError> {
    let step = || "mount the control groups".to_owned();
    let place = mounts::inside(root, &mount.target).step(step)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let read_only = if mount.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    match Hierarchy::detect().step(step)? {
        Hierarchy::V2(_) => {
            mounts::mount("cgroup", &place.path(), "cgroup2", flags | read_only, "").step(step)
        }
        Hierarchy::V1(controllers) => {
            mounts::mount("tmpfs", &place.path(), "tmpfs", flags, "mode=755,size=1m").step(step)?;
            drop(place);
            flags |= read_only;
            let mut directories: Vec<&PathBuf> = controllers.values().collect();
            directories.sort();
            directories.dedup();
            for directory in directories {
                let together: Vec<&str> = controllers
                    .iter()
                    .filter(|(_, place)| *place == directory)
                    .map(|(controller, _)| controller.as_str())
                    .collect();
                let Some(name) = directory.file_name() else { continue };
                let place = prepare(root, &mount.target.join(name), true)?;
                mounts::mount("cgroup", &place.path(), "cgroup", flags, &together.join(",")).step(step)?;
            }
            if mount.read_only {
                let place = mounts::inside(root, &mount.target).step(step)?;
                mounts::restrict(&target_of(&place), Attributes { read_only: true, ..Default::default() })
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
        let step = || format!("look at device {}", device.host.display());
        let found = std::fs::metadata(&device.host).step(step)?;
        let kind = match found.file_type() {
            kind if kind.is_char_device() => FileType::CharacterDevice,
            kind if kind.is_block_device() => FileType::BlockDevice,
            _ => return Err(failure(&step(), "it is no device")),
        };
        let owner = if users.is_some() { owner } else { (found.uid(), found.gid()) };
        node(root, &device.target, kind, found.mode() & 0o7777, found.rdev(), owner)?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let place = prepare(root, Path::new("/dev"), true)?;
    for (to, name) in LINKS {
        match rustix::fs::symlinkat(*to, CWD, place.path().join(name)) {
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
    let place = parent.path().join(name);
    match rustix::fs::mknodat(CWD, &place, kind, Mode::from_raw_mode(mode), device) {
        Err(rustix::io::Errno::EXIST) => return Ok(()),
        other => other.step(step)?,
    }
    std::os::unix::fs::lchown(&place, Some(owner.0), Some(owner.1)).step(step)
}

/// All devices of the host, for privileged containers; terminals, queues and shared memory are per container.
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
                found.push(Device { host: path.clone(), target: path, permissions: "rwm".to_owned() });
            }
        }
    }
    Ok(found)
}

fn pivot(target: &Path) -> Result<(), ShimError> {
    let step = || "change the root".to_owned();
    std::env::set_current_dir(target).step(step)?;
    rustix::process::pivot_root(".", ".").step(step)?;
    // The old root lies over the new one now; it goes, with all below it.
    rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH).step(step)?;
    std::env::set_current_dir("/").step(step)
}

/// Hides what is at `path`. Only descriptors are used: this runs in the container's root, whose `/proc` is not trusted.
fn mask(root: &File, path: &Path) -> io::Result<()> {
    let place = match mounts::inside(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if FileType::from_raw_mode(place.metadata()?.st_mode) == FileType::Directory {
        return mounts::attach(mounts::empty_tree()?.as_fd(), &place);
    }
    // A volume may have put another file there, to have it mounted in place of the masked one.
    let null = mounts::inside(root, Path::new("/dev/null"))?;
    let found = null.metadata()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice
        || found.st_rdev != rustix::fs::makedev(1, 3)
    {
        return Err(io::Error::other("/dev/null is not the null device"));
    }
    mounts::attach(mounts::clone_tree(&null, false)?.as_fd(), &place)
}

/// Makes `path` and what is mounted at it read-only, by descriptors as [`mask`] does.
fn protect(root: &File, path: &Path) -> io::Result<()> {
    let place = match mounts::inside(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let tree = mounts::clone_tree(&place, true)?;
    mounts::restrict_opened(tree.as_fd(), Attributes { read_only: true, ..Default::default() })?;
    mounts::attach(tree.as_fd(), &place)
}

/// The path of an open file as the kernel names it. Uses `/proc`, so it is for the time before the root is changed.
pub(super) fn kernel_path(file: std::os::fd::BorrowedFd<'_>) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `test` on a thread with a mount namespace of its own, with a directory to work in.
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

    /// CVE-2025-31133, CVE-2025-52881: `/proc/self` leads to decoys for every descriptor.
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
            // In this mount namespace every process is shown the decoys.
            let own = std::fs::read_link("/proc/self").unwrap();
            mounts::bind(&decoys, &Path::new("/proc").join(own), false).unwrap();
            mask(&root, Path::new("/secret")).unwrap();
            mask(&root, Path::new("/hidden")).unwrap();
            protect(&root, Path::new("/tree")).unwrap();
            assert_eq!(std::fs::read(root_path.join("secret")).unwrap(), b"");
            assert_eq!(std::fs::read_dir(root_path.join("hidden")).unwrap().count(), 0);
            let written = std::fs::write(root_path.join("tree/sub/file"), "x");
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
            // A null device that a volume has replaced is refused.
            std::fs::remove_file(root_path.join("dev/null")).unwrap();
            std::fs::write(root_path.join("dev/null"), "forged").unwrap();
            assert!(mask(&root, Path::new("/tree/sub")).is_ok(), "directories need no device");
            assert!(mask(&root, Path::new("/secret")).is_err());
        });
    }
}
