//! Leaves the cgroups of the parent process, so that neither its service manager nor its limits kill processes that
//! outlive it.

use std::io;
use std::path::{Path, PathBuf};

use super::{Hierarchy, v1};
use crate::mounts::{self, Mounted};

/// Hierarchies to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Hierarchies that only track processes, as used by service managers.
    Tracking,
    /// Hierarchies with resource controllers.
    Limiting,
}

/// Moves the calling process to `path` in hierarchies where it is not in the root cgroup.
pub fn leave(path: &str, which: Which) -> io::Result<()> {
    let (mounted, own) = (mounts::list()?, std::fs::read_to_string("/proc/self/cgroup")?);
    for root in hierarchies_of(&mounted, &own, which) {
        let directory = root.join(path.trim_matches('/'));
        match Hierarchy::detect()? {
            Hierarchy::V1(controllers) => {
                let own = controllers.into_iter().filter(|(_, hierarchy)| *hierarchy == root).collect();
                v1::create(&own, path.trim_matches('/'))?;
                std::fs::create_dir_all(&directory)?;
            }
            Hierarchy::V2(_) => std::fs::create_dir_all(&directory)?,
        }
        super::write(&directory.join("cgroup.procs"), "0")?;
    }
    Ok(())
}

/// Removes the cgroups created by [`leave`] unless they contain processes.
pub fn remove_if_empty(path: &str) {
    let Ok(mounted) = mounts::list() else { return };
    for mount in mounted.iter().filter(|mount| mount.filesystem.starts_with("cgroup")) {
        let mut directory = mount.target.join(path.trim_matches('/'));
        while directory != mount.target && std::fs::remove_dir(&directory).is_ok() && directory.pop() {}
    }
}

/// Hierarchies in which the process is not in the root cgroup.
fn hierarchies_of(mounted: &[Mounted], own: &str, which: Which) -> Vec<PathBuf> {
    let controls =
        |mount: &Mounted| mount.super_options.split(',').any(|option| v1::CONTROLLERS.contains(&option));
    let alone = !mounted.iter().any(|mount| mount.filesystem == "cgroup" && controls(mount));
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(names), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if path == "/" {
            continue;
        }
        let mount = mounted.iter().find(|mount| match names {
            "" => mount.filesystem == "cgroup2",
            names => {
                mount.filesystem == "cgroup"
                    && names
                        .split(',')
                        .any(|name| mount.super_options.split(',').any(|option| option == name))
            }
        });
        let Some(mount) = mount.filter(|mount| mount.root == Path::new("/")) else { continue };
        let limiting = controls(mount) || (names.is_empty() && alone);
        if limiting == (which == Which::Limiting) {
            found.push(mount.target.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_selects_non_root_hierarchies() {
        let mount = |filesystem: &str, target: &str, options: &str| Mounted {
            root: "/".into(),
            target: target.into(),
            source: "none".into(),
            filesystem: filesystem.into(),
            super_options: options.into(),
        };
        let hybrid = [
            mount("cgroup", "/c/memory", "rw,memory"),
            mount("cgroup", "/c/systemd", "rw,name=systemd"),
            mount("cgroup2", "/c/unified", "rw"),
        ];
        let own = "3:memory:/system.slice/x\n1:name=systemd:/system.slice/x\n0::/system.slice/x\n";
        assert_eq!(hierarchies_of(&hybrid, own, Which::Limiting), [PathBuf::from("/c/memory")]);
        let tracking = [PathBuf::from("/c/systemd"), "/c/unified".into()];
        assert_eq!(hierarchies_of(&hybrid, own, Which::Tracking), tracking);
        let pure = [mount("cgroup2", "/c", "rw")];
        assert_eq!(hierarchies_of(&pure, "0::/system.slice/x\n", Which::Limiting), [PathBuf::from("/c")]);
        assert!(hierarchies_of(&hybrid, "3:memory:/\n1:name=systemd:/\n0::/\n", Which::Tracking).is_empty());
    }
}
