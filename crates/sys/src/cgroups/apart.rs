//! Leaving the groups of whoever started this process, so that neither its service manager nor its limits end what is to
//! outlive it.

use std::io;
use std::path::{Path, PathBuf};

use super::{Hierarchy, v1};
use crate::mounts::{self, Mounted};

/// Which hierarchies to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that only keep track of processes, as service managers use them.
    Tracking,
    /// Those that limit something.
    Limiting,
}

/// Moves the calling process to `path` wherever it is not in the root group already.
pub fn leave(path: &str, which: Which) -> io::Result<()> {
    let (mounted, own) = (mounts::list()?, std::fs::read_to_string("/proc/self/cgroup")?);
    for root in to_leave(&mounted, &own, which) {
        let directory = root.join(path.trim_matches('/'));
        match Hierarchy::detect()? {
            Hierarchy::V1(controllers) => {
                let own = controllers.into_iter().filter(|(_, place)| *place == root).collect();
                v1::create(&own, path.trim_matches('/'))?;
                std::fs::create_dir_all(&directory)?;
            }
            Hierarchy::V2(_) => std::fs::create_dir_all(&directory)?,
        }
        super::write(&directory.join("cgroup.procs"), "0")?;
    }
    Ok(())
}

/// Removes the groups that [`leave`] made, unless somebody is in them.
pub fn remove_if_empty(path: &str) {
    let Ok(mounted) = mounts::list() else { return };
    for mount in mounted.iter().filter(|mount| mount.filesystem.starts_with("cgroup")) {
        let mut directory = mount.target.join(path.trim_matches('/'));
        while directory != mount.target && std::fs::remove_dir(&directory).is_ok() && directory.pop() {}
    }
}

/// Where the hierarchies are in which the process is not at the root.
fn to_leave(mounted: &[Mounted], own: &str, which: Which) -> Vec<PathBuf> {
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
    fn hierarchies_to_leave() {
        let mount = |filesystem: &str, target: &str, options: &str| Mounted {
            root: "/".into(),
            target: target.into(),
            filesystem: filesystem.into(),
            super_options: options.into(),
        };
        let hybrid = [
            mount("cgroup", "/c/memory", "rw,memory"),
            mount("cgroup", "/c/systemd", "rw,name=systemd"),
            mount("cgroup2", "/c/unified", "rw"),
        ];
        let own = "3:memory:/system.slice/x\n1:name=systemd:/system.slice/x\n0::/system.slice/x\n";
        assert_eq!(to_leave(&hybrid, own, Which::Limiting), [PathBuf::from("/c/memory")]);
        let tracking = [PathBuf::from("/c/systemd"), "/c/unified".into()];
        assert_eq!(to_leave(&hybrid, own, Which::Tracking), tracking);
        let pure = [mount("cgroup2", "/c", "rw")];
        assert_eq!(to_leave(&pure, "0::/system.slice/x\n", Which::Limiting), [PathBuf::from("/c")]);
        assert!(to_leave(&hybrid, "3:memory:/\n1:name=systemd:/\n0::/\n", Which::Tracking).is_empty());
    }
}
