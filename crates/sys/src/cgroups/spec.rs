//! Limits in force in a cgroup.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{Group, Hierarchy, number};

/// Limits and creation time of a cgroup. A controller that the cgroup does not have is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    pub created: Option<SystemTime>,
    pub cpu: Option<CpuSpec>,
    pub memory: Option<MemorySpec>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSpec {
    pub shares: u64,
    /// Microseconds.
    pub period: u64,
    /// Microseconds per period; `None` is no limit.
    pub quota: Option<u64>,
}

/// Bytes; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySpec {
    pub limit: Option<u64>,
    /// Memory and swap together in version 1, swap alone in version 2.
    pub swap_limit: Option<u64>,
    pub reservation: Option<u64>,
}

/// Version 1 represents "no limit" by a number near the maximum.
const UNLIMITED: u64 = 1 << 60;

pub(super) fn read(group: &Group) -> GroupSpec {
    let created = group.directories().iter().filter_map(|found| created(found, group.hierarchy())).min();
    let limit = |file: PathBuf| number(&file).filter(|limit| *limit < UNLIMITED);
    match group.hierarchy() {
        Hierarchy::V1(_) => GroupSpec {
            created,
            cpu: group.directory("cpu").filter(|found| found.exists()).map(|found| CpuSpec {
                shares: number(&found.join("cpu.shares")).unwrap_or(0),
                period: number(&found.join("cpu.cfs_period_us")).unwrap_or(0),
                quota: number(&found.join("cpu.cfs_quota_us")),
            }),
            memory: group.directory("memory").filter(|found| found.exists()).map(|found| MemorySpec {
                limit: limit(found.join("memory.limit_in_bytes")),
                swap_limit: limit(found.join("memory.memsw.limit_in_bytes")),
                reservation: limit(found.join("memory.soft_limit_in_bytes")),
            }),
        },
        Hierarchy::V2(_) => {
            let Some(found) = group.directory("").filter(|found| found.exists()) else {
                return GroupSpec::default();
            };
            let max = std::fs::read_to_string(found.join("cpu.max")).unwrap_or_default();
            let mut max = max.split_ascii_whitespace().map(|field| field.parse().ok());
            let (quota, period) = (max.next().flatten(), max.next().flatten().unwrap_or(0));
            let shares = number(&found.join("cpu.weight")).map(shares_of_weight);
            GroupSpec {
                created,
                cpu: shares.map(|shares| CpuSpec { shares, period, quota }),
                memory: found.join("memory.max").exists().then(|| MemorySpec {
                    limit: limit(found.join("memory.max")),
                    swap_limit: limit(found.join("memory.swap.max")),
                    reservation: limit(found.join("memory.min")).filter(|bytes| *bytes > 0),
                }),
            }
        }
    }
}

/// CPU shares of version 1 that correspond to a weight of version 2.
fn shares_of_weight(weight: u64) -> u64 {
    if (1..=10_000).contains(&weight) { 2 + (weight - 1) * 262_142 / 9_999 } else { 0 }
}

/// The directory's time changes when a cgroup is created in it; that of a file which is never written does not.
fn created(directory: &Path, hierarchy: &Hierarchy) -> Option<SystemTime> {
    let file = directory.join(if hierarchy.is_v2() { "cgroup.events" } else { "cgroup.clone_children" });
    let modified = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    modified(directory).into_iter().chain(modified(&file)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_limits_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let group = Hierarchy::V2(dir.path().into()).group("/pod").unwrap();
        assert_eq!(read(&group), GroupSpec::default());
        std::fs::create_dir(dir.path().join("pod")).unwrap();
        let put = |file: &str, text: &str| std::fs::write(dir.path().join("pod").join(file), text).unwrap();
        put("cpu.max", "max 100000\n");
        put("cpu.weight", "39\n");
        put("memory.max", "1048576\n");
        put("memory.swap.max", "max\n");
        let spec = read(&group);
        assert_eq!(spec.cpu, Some(CpuSpec { shares: 998, period: 100_000, quota: None }));
        let memory = MemorySpec { limit: Some(1_048_576), swap_limit: None, reservation: None };
        assert_eq!(spec.memory, Some(memory));
        assert!(spec.created.is_some());
        put("cpu.max", "50000 100000\n");
        assert_eq!(read(&group).cpu.and_then(|cpu| cpu.quota), Some(50_000));
        assert_eq!((shares_of_weight(1), shares_of_weight(10_000), shares_of_weight(0)), (2, 262_144, 0));
    }

    #[test]
    fn v1_limits_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = |name: &str| (name.to_owned(), dir.path().join(name));
        let group = Hierarchy::V1([root("cpu"), root("memory")].into()).group("/pod").unwrap();
        for (file, text) in [
            ("cpu/pod/cpu.shares", "1024"),
            ("cpu/pod/cpu.cfs_period_us", "100000"),
            ("cpu/pod/cpu.cfs_quota_us", "-1"),
            ("memory/pod/memory.limit_in_bytes", "9223372036854771712"),
            ("memory/pod/memory.soft_limit_in_bytes", "4096"),
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let spec = read(&group);
        assert_eq!(spec.cpu, Some(CpuSpec { shares: 1024, period: 100_000, quota: None }));
        let memory = MemorySpec { limit: None, swap_limit: None, reservation: Some(4096) };
        assert_eq!(spec.memory, Some(memory));
    }
}
