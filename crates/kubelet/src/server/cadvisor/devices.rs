//! Block devices and file systems of the machine.

use std::path::{Path, PathBuf};

use sys::cgroups::DeviceUse;

use crate::node;

/// Limit of file systems.
const MAX_DISKS: usize = 64;

/// Disk I/O of a cgroup on one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceSample {
    /// Such as `/dev/sda`.
    pub device: String,
    pub used: DeviceUse,
}

/// Usage of a file system. A value that is unknown is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskSample {
    pub device: String,
    pub used: u64,
    pub limit: Option<u64>,
    pub inodes: Option<u64>,
    pub inodes_free: Option<u64>,
}

/// A mounted block device.
#[derive(Clone, Debug)]
pub struct MountedDisk {
    pub device: String,
    pub target: PathBuf,
}

fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

impl MountedDisk {
    /// Usage by anything.
    pub fn whole(&self) -> DiskSample {
        let found = node::file_system_of(&self.target);
        self.sample(found, number(found.bytes.0.saturating_sub(found.bytes.1)))
    }

    fn sample(&self, found: node::FileSystem, used: u64) -> DiskSample {
        DiskSample {
            device: self.device.clone(),
            used,
            limit: Some(number(found.bytes.0)),
            inodes: Some(number(found.inodes.0)),
            inodes_free: Some(number(found.inodes.1)),
        }
    }
}

/// Mounted block devices, each once.
pub fn mounted() -> Vec<MountedDisk> {
    let mut found: Vec<MountedDisk> = Vec::new();
    for mount in sys::mounts::list().unwrap_or_default() {
        let Some(device) = mount.source.to_str().filter(|source| source.starts_with("/dev/")) else {
            continue;
        };
        if found.len() < MAX_DISKS && !found.iter().any(|one| one.device == device) {
            found.push(MountedDisk { device: device.to_owned(), target: mount.target });
        }
    }
    found
}

/// Usage by a container of the file system at `mount`.
pub fn used(disks: &[MountedDisk], mount: &str, bytes: u64) -> DiskSample {
    let path = Path::new(mount);
    let around = disks.iter().filter(|disk| path.starts_with(&disk.target));
    match around.max_by_key(|disk| disk.target.as_os_str().len()) {
        Some(disk) => disk.sample(node::file_system_of(path), bytes),
        None => DiskSample { used: bytes, ..DiskSample::default() },
    }
}

/// Names devices as the kernel does.
pub fn named(found: Vec<DeviceUse>) -> Vec<DeviceSample> {
    let named = |used: DeviceUse| {
        let uevent = std::fs::read_to_string(format!("/sys/dev/block/{}:{}/uevent", used.major, used.minor));
        let uevent = uevent.unwrap_or_default();
        let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        DeviceSample { device: name.map(|name| format!("/dev/{name}")).unwrap_or_default(), used }
    };
    found.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_disk_is_the_innermost_mount() {
        let disk = |device: &str, target: &str| MountedDisk { device: device.into(), target: target.into() };
        let disks = [disk("/dev/a", "/"), disk("/dev/b", "/var"), disk("/dev/c", "/varia")];
        assert_eq!(used(&disks, "/var/lib", 7).device, "/dev/b");
        assert_eq!(used(&disks, "/etc", 7).device, "/dev/a");
        assert_eq!(used(&[], "/etc", 7), DiskSample { used: 7, ..DiskSample::default() });
    }
}
