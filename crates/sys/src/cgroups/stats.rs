//! What a group uses.

use super::{Group, Hierarchy, keyed, number};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    pub usage_nanoseconds: u64,
    pub user_nanoseconds: u64,
    pub system_nanoseconds: u64,
    /// Of its quota: how many periods passed, in how many it was used up, and how long the group waited then.
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_nanoseconds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    pub usage: u64,
    /// Usage without file pages that nobody used lately: what eviction looks at.
    pub working_set: u64,
    pub rss: u64,
    /// File pages.
    pub cache: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// `None` is no limit.
    pub limit: Option<u64>,
    pub swap_usage: u64,
    /// The most that was ever used.
    pub peak: u64,
    /// How often the limit was hit.
    pub failures: u64,
    /// What the kernel holds for the group.
    pub kernel: u64,
    /// File pages that processes have mapped.
    pub mapped_file: u64,
}

/// What went to and from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub cpu: CpuStats,
    pub memory: MemoryStats,
    /// Threads are processes here, as the kernel counts.
    pub processes: u64,
    /// How many there may be; `None` is no limit.
    pub most_processes: Option<u64>,
}

/// Version 1 says "no limit" with a number near the largest.
const UNLIMITED: u64 = 1 << 60;

pub(super) fn read(group: &Group) -> Stats {
    match group.hierarchy() {
        Hierarchy::V1(_) => read_v1(group),
        Hierarchy::V2(_) => read_v2(group),
    }
}

fn read_v1(group: &Group) -> Stats {
    let mut stats = Stats::default();
    if let Some(directory) = group.directory("cpuacct") {
        stats.cpu.usage_nanoseconds = number(&directory.join("cpuacct.usage")).unwrap_or(0);
        stats.cpu.user_nanoseconds = number(&directory.join("cpuacct.usage_user")).unwrap_or(0);
        stats.cpu.system_nanoseconds = number(&directory.join("cpuacct.usage_sys")).unwrap_or(0);
    }
    if let Some(directory) = group.directory("cpu") {
        let detail = directory.join("cpu.stat");
        let of = |key: &str| keyed(&detail, key).unwrap_or(0);
        stats.cpu.periods = of("nr_periods");
        stats.cpu.throttled_periods = of("nr_throttled");
        stats.cpu.throttled_nanoseconds = of("throttled_time");
    }
    if let Some(directory) = group.directory("memory") {
        let detail = directory.join("memory.stat");
        let of = |key: &str| keyed(&detail, key).unwrap_or(0);
        let usage = number(&directory.join("memory.usage_in_bytes")).unwrap_or(0);
        let with_swap = number(&directory.join("memory.memsw.usage_in_bytes")).unwrap_or(usage);
        stats.memory = MemoryStats {
            usage,
            working_set: usage.saturating_sub(of("total_inactive_file")),
            rss: of("total_rss"),
            cache: of("total_cache"),
            page_faults: of("total_pgfault"),
            major_page_faults: of("total_pgmajfault"),
            limit: number(&directory.join("memory.limit_in_bytes")).filter(|limit| *limit < UNLIMITED),
            swap_usage: with_swap.saturating_sub(usage),
            peak: number(&directory.join("memory.max_usage_in_bytes")).unwrap_or(0),
            failures: number(&directory.join("memory.failcnt")).unwrap_or(0),
            kernel: number(&directory.join("memory.kmem.usage_in_bytes")).unwrap_or(0),
            mapped_file: of("total_mapped_file"),
        };
    }
    if let Some(directory) = group.directory("pids") {
        stats.processes = number(&directory.join("pids.current")).unwrap_or(0);
        stats.most_processes = number(&directory.join("pids.max"));
    }
    stats
}

fn read_v2(group: &Group) -> Stats {
    let Some(directory) = group.directory("") else { return Stats::default() };
    let detail = directory.join("memory.stat");
    let of = |key: &str| keyed(&detail, key).unwrap_or(0);
    let usage = number(&directory.join("memory.current")).unwrap_or(0);
    let cpu = directory.join("cpu.stat");
    let of_cpu = |key: &str| keyed(&cpu, key).unwrap_or(0);
    let time = |key: &str| of_cpu(key).saturating_mul(1000);
    Stats {
        cpu: CpuStats {
            usage_nanoseconds: time("usage_usec"),
            user_nanoseconds: time("user_usec"),
            system_nanoseconds: time("system_usec"),
            periods: of_cpu("nr_periods"),
            throttled_periods: of_cpu("nr_throttled"),
            throttled_nanoseconds: time("throttled_usec"),
        },
        memory: MemoryStats {
            usage,
            working_set: usage.saturating_sub(of("inactive_file")),
            rss: of("anon"),
            cache: of("file"),
            page_faults: of("pgfault"),
            major_page_faults: of("pgmajfault"),
            limit: number(&directory.join("memory.max")),
            swap_usage: number(&directory.join("memory.swap.current")).unwrap_or(0),
            peak: number(&directory.join("memory.peak")).unwrap_or(0),
            failures: keyed(&directory.join("memory.events"), "max").unwrap_or(0),
            kernel: of("kernel"),
            mapped_file: of("file_mapped"),
        },
        processes: number(&directory.join("pids.current")).unwrap_or(0),
        most_processes: number(&directory.join("pids.max")),
    }
}

/// What the group did to disks. Version 1 keeps that in a hierarchy that is not used here.
pub(super) fn devices(group: &Group) -> Vec<DeviceUse> {
    let Some(directory) = group.directory("").filter(|_| group.hierarchy().is_v2()) else {
        return Vec::new();
    };
    let text = std::fs::read_to_string(directory.join("io.stat")).unwrap_or_default();
    text.lines().filter_map(device_use).collect()
}

/// A line as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn device_use(line: &str) -> Option<DeviceUse> {
    let mut words = line.split_ascii_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let mut found =
        DeviceUse { major: major.parse().ok()?, minor: minor.parse().ok()?, ..DeviceUse::default() };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        let value = value.parse().unwrap_or(0);
        match key {
            "rbytes" => found.read_bytes = value,
            "wbytes" => found.written_bytes = value,
            "rios" => found.reads = value,
            "wios" => found.writes = value,
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_devices() {
        let line = "254:16 rbytes=1024 wbytes=2048 rios=3 wios=4 dbytes=0 dios=0";
        let wanted =
            DeviceUse { major: 254, minor: 16, read_bytes: 1024, written_bytes: 2048, reads: 3, writes: 4 };
        assert_eq!(device_use(line), Some(wanted));
        assert_eq!(device_use("8:0"), Some(DeviceUse { major: 8, ..DeviceUse::default() }));
        for bad in ["", "rbytes=1", "a:b rbytes=1"] {
            assert_eq!(device_use(bad), None, "{bad}");
        }
    }
}
