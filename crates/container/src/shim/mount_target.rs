//! Restricts the mount targets of a container: only kernel filesystems may cover its `/proc` or `/sys`.
//!
//! The shim and the container's programs trust their content. A volume over a part of them could redirect masks,
//! labels and limits, as in CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881. The target is checked after it was
//! resolved, so links in the image cannot bypass the check.

use std::os::fd::AsFd as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use sys::mounts::{self, Inside};

use super::rootfs::kernel_path;
use super::spec::{Mount, Source};
use super::{ShimError, Step, failure};

/// Files below `/proc` that may be covered (runc's list): lxcfs emulates them.
const ALLOWED_IN_PROC: &[&str] = &[
    "cpuinfo",
    "diskstats",
    "meminfo",
    "stat",
    "swaps",
    "uptime",
    "loadavg",
    "slabinfo",
    "sys/kernel/ns_last_pid",
    "sys/crypto/fips_enabled",
];

const PROC: u64 = 0x9fa0;
/// The inode number of the root of every procfs.
const PROC_ROOT: u64 = 1;

/// Kernel filesystems that belong at or below `/sys`; only `hostPath` volumes can be of these types.
const IN_SYS: &[u64] = &[
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x6265_6570, // configfs
    0x6573_5543, // fusectl
];

/// Location of a resolved target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Root,
    Proc,
    BelowProc { allowed: bool },
    Sys,
    Elsewhere,
}

/// The position of `path`, which is relative to the container's root.
fn position(path: &Path) -> Position {
    let mut parts = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    match parts.next() {
        None => Position::Root,
        Some(first) if first.as_os_str() == "proc" => {
            let rest: PathBuf = parts.collect();
            if rest.as_os_str().is_empty() {
                Position::Proc
            } else {
                let allowed = ALLOWED_IN_PROC.iter().any(|allowed| rest == Path::new(allowed));
                Position::BelowProc { allowed }
            }
        }
        Some(first) if first.as_os_str() == "sys" => Position::Sys,
        Some(_) => Position::Elsewhere,
    }
}

/// Rejects a mount whose resolved target `mounted` is a part of `/proc` or `/sys` that a volume must not cover. Called
/// while the host's root is still this process's.
pub(super) fn check(root: &Path, mounted: &Inside, mount: &Mount) -> Result<(), ShimError> {
    let step = || format!("mount {}", mount.target.display());
    let resolved = kernel_path(mounted.as_fd()).step(step)?;
    let Ok(inside) = resolved.strip_prefix(root) else {
        return Err(failure(&step(), "the target is outside of the container's root"));
    };
    let shown = Path::new("/").join(inside);
    match position(inside) {
        Position::Root => Err(failure(&step(), "the target is the root of the container")),
        Position::Proc => match &mount.source {
            Source::Kernel { kind, .. } if kind == "proc" => Ok(()),
            Source::Bind(source) if is_procfs(source).step(step)? => Ok(()),
            _ => {
                let reason = format!("{shown:?} cannot be mounted because it is not of type proc");
                Err(failure(&step(), reason))
            }
        },
        Position::BelowProc { allowed: true } => Ok(()),
        Position::BelowProc { allowed: false } => {
            Err(failure(&step(), format!("{shown:?} cannot be mounted because it is inside /proc")))
        }
        Position::Sys => match &mount.source {
            Source::Kernel { kind, .. } if kind == "sysfs" => Ok(()),
            Source::Cgroups => Ok(()),
            Source::Bind(source) if belongs_in_sys(source).step(step)? => Ok(()),
            _ => Err(failure(&step(), format!("{shown:?} cannot be mounted because it is inside /sys"))),
        },
        // The name of a directory does not matter, but a procfs elsewhere is one that a volume has mounted.
        Position::Elsewhere if mounted.filesystem().step(step)? == PROC => {
            Err(failure(&step(), format!("{shown:?} cannot be mounted because it is on a procfs")))
        }
        Position::Elsewhere => Ok(()),
    }
}

fn open(source: &Path) -> std::io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(CWD, source, flags, Mode::empty())?)
}

/// Reports whether `source` is the root of a procfs.
fn is_procfs(source: &Path) -> std::io::Result<bool> {
    let file = open(source)?;
    Ok(mounts::filesystem(file.as_fd())? == PROC && rustix::fs::fstat(&file)?.st_ino == PROC_ROOT)
}

/// Reports whether `source` is in the host's `/sys`, or on a kernel filesystem that is mounted there.
fn belongs_in_sys(source: &Path) -> std::io::Result<bool> {
    let file = open(source)?;
    Ok(source.starts_with("/sys") || IN_SYS.contains(&mounts::filesystem(file.as_fd())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_proc_and_sys_paths_are_recognized() {
        for (path, wanted) in [
            ("", Position::Root),
            ("/", Position::Root),
            ("proc", Position::Proc),
            ("proc/self/status", Position::BelowProc { allowed: false }),
            ("proc/cpuinfo", Position::BelowProc { allowed: true }),
            ("proc/cpuinfo/x", Position::BelowProc { allowed: false }),
            ("proc/sys", Position::BelowProc { allowed: false }),
            ("proc/sys/kernel/ns_last_pid", Position::BelowProc { allowed: true }),
            ("sys", Position::Sys),
            ("sys/kernel", Position::Sys),
            ("process", Position::Elsewhere),
            ("system/proc", Position::Elsewhere),
        ] {
            assert_eq!(position(Path::new(path)), wanted, "{path}");
        }
    }

    #[test]
    fn source_kernel_file_system_is_distinguished_from_directory() {
        assert!(is_procfs(Path::new("/proc")).unwrap());
        assert!(!is_procfs(Path::new("/proc/sys")).unwrap());
        assert!(!is_procfs(Path::new("/etc")).unwrap());
        assert!(belongs_in_sys(Path::new("/sys")).unwrap());
        assert!(!belongs_in_sys(Path::new("/tmp")).unwrap());
    }
}
