//! Mounts of a container: the default ones and those that CRI requests.

use std::path::{Path, PathBuf};

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext, MountPropagation};

use super::super::records::Sandbox;
use super::super::{Doing, Runtime, RuntimeError};
use crate::images;
use crate::shim::spec::{Mount, Propagation, Source};

impl Runtime {
    pub(super) fn mounts(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        security: &LinuxContainerSecurityContext,
    ) -> Result<Vec<Mount>, RuntimeError> {
        let privileged = security.privileged;
        let kernel = |target: &str, kind: &str, options: &str, no_exec: bool, read_only: bool| Mount {
            target: target.into(),
            source: Source::Kernel {
                kind: kind.to_owned(),
                options: options.to_owned(),
                no_exec,
                no_suid: true,
                no_dev: kind != "tmpfs" && kind != "devpts",
            },
            read_only,
            recursive_read_only: false,
            propagation: Propagation::Private,
            mapped: false,
        };
        let bind = |target: &str, source: PathBuf, read_only: bool| Mount {
            target: target.into(),
            source: Source::Bind(source),
            read_only,
            recursive_read_only: false,
            propagation: Propagation::Private,
            mapped: false,
        };
        let mut mounts = vec![
            kernel("/proc", "proc", "", true, false),
            kernel("/dev", "tmpfs", "mode=755,size=65536k", false, false),
            kernel("/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620,gid=5", true, false),
            kernel("/dev/mqueue", "mqueue", "", true, false),
            kernel("/sys", "sysfs", "", true, !privileged),
        ];
        mounts.push(Mount {
            target: "/sys/fs/cgroup".into(),
            source: Source::Cgroups,
            read_only: !privileged,
            recursive_read_only: false,
            propagation: Propagation::Private,
            mapped: false,
        });
        let wanted = |target: &str| {
            !config.mounts.iter().any(|mount| Path::new(&mount.container_path) == Path::new(target))
        };
        let memory = sandbox.directory.join("shm");
        let memory = if memory.exists() { memory } else { PathBuf::from("/dev/shm") };
        let read_only = security.readonly_rootfs;
        for (target, source, read_only) in [
            ("/dev/shm", memory, false),
            ("/etc/resolv.conf", sandbox.directory.join("resolv.conf"), read_only),
            ("/etc/hostname", sandbox.directory.join("hostname"), read_only),
        ] {
            if wanted(target) {
                mounts.push(bind(target, source, read_only));
            }
        }
        let mut requested = Vec::new();
        for mount in &config.mounts {
            requested.push(self.mount(mount)?);
        }
        // Parents are mounted before their children; otherwise the caller's order holds.
        requested.sort_by_key(|mount: &Mount| mount.target.components().count());
        mounts.retain(|own| !requested.iter().any(|mount| mount.target == own.target));
        mounts.extend(requested);
        Ok(mounts)
    }

    fn mount(&self, mount: &cri::v1::Mount) -> Result<Mount, RuntimeError> {
        let target = PathBuf::from(&mount.container_path);
        if !target.is_absolute() {
            return Err(RuntimeError::Invalid(format!(
                "mount path {:?} is not absolute",
                mount.container_path
            )));
        }
        let source = match &mount.image {
            Some(image) if !image.image.is_empty() => {
                let found = self.images.find(&image.image);
                let found = found
                    .ok_or_else(|| RuntimeError::NotFound(format!("image {:?} not found", image.image)))?;
                if !mount.readonly {
                    return Err(RuntimeError::Invalid(format!(
                        "the mount of image {:?} at {:?} must be read-only",
                        image.image, mount.container_path
                    )));
                }
                let (root, part) = (found.root(&self.images, true), Path::new(&mount.image_sub_path));
                if !images::contains(&root, part).doing(|| format!("inspect image {:?}", image.image))? {
                    return Err(RuntimeError::NotFound(format!(
                        "image {:?} has no {:?}",
                        image.image, mount.image_sub_path
                    )));
                }
                Source::Layers { root, sub_path: part.to_owned() }
            }
            _ => {
                let path = PathBuf::from(&mount.host_path);
                if !path.exists() {
                    // As in other runtimes: a missing host path is created as an empty directory.
                    std::fs::create_dir_all(&path).doing(|| format!("make {}", path.display()))?;
                }
                // Links are resolved now; the result is mounted.
                Source::Bind(std::fs::canonicalize(&path).doing(|| format!("resolve {}", path.display()))?)
            }
        };
        if mount.recursive_read_only
            && !(mount.readonly && mount.propagation() == MountPropagation::PropagationPrivate)
        {
            return Err(RuntimeError::Invalid(
                "a recursively read-only mount must be read-only and private".to_owned(),
            ));
        }
        Ok(Mount {
            target,
            source,
            read_only: mount.readonly,
            recursive_read_only: mount.recursive_read_only,
            mapped: !mount.uid_mappings.is_empty(),
            propagation: match mount.propagation() {
                MountPropagation::PropagationPrivate => Propagation::Private,
                MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
                MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
            },
        })
    }
}
