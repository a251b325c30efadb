//! Resource usage of a cgroup. Each file is read once.

use std::path::Path;

use super::pressure::{self, Pressure};
use super::{Group, Hierarchy, number};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    pub usage_nanoseconds: u64,
    pub user_nanoseconds: u64,
    pub system_nanoseconds: u64,
    /// CFS quota counters: elapsed periods, throttled periods, throttled time.
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_nanoseconds: u64,
    /// Periods that used accumulated quota, and the CPU time beyond the quota in them.
    pub burst_periods: u64,
    pub burst_nanoseconds: u64,
    pub pressure: Option<Pressure>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    pub usage: u64,
    /// Working set: usage without inactive file pages, as used by eviction.
    pub working_set: u64,
    pub rss: u64,
    /// File pages.
    pub cache: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// `None` is no limit.
    pub limit: Option<u64>,
    pub swap_usage: u64,
    /// Peak usage.
    pub peak: u64,
    /// Number of limit hits.
    pub failures: u64,
    /// Kernel memory of the cgroup.
    pub kernel: u64,
    /// Mapped file pages.
    pub mapped_file: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub pressure: Option<Pressure>,
}

/// I/O counters of a device.
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
    /// Includes threads, as the kernel counts them.
    pub processes: u64,
    /// Process limit; `None` is no limit.
    pub most_processes: Option<u64>,
    pub io_pressure: Option<Pressure>,
}

/// Version 1 represents "no limit" by a number near the maximum.
const UNLIMITED: u64 = 1 << 60;

pub(super) fn read(group: &Group) -> Stats {
    match group.hierarchy() {
        Hierarchy::V1(_) => read_v1(group),
        Hierarchy::V2(_) => read_v2(group),
    }
}

/// Content of a file of `key value` lines.
struct Keyed(String);

impl Keyed {
    fn read(file: &Path) -> Self {
        Self(std::fs::read_to_string(file).unwrap_or_default())
    }

    /// Value of a key; 0 if the file does not have it.
    fn of(&self, key: &str) -> u64 {
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok();
        self.0.lines().find_map(value).unwrap_or(0)
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
        let detail = Keyed::read(&directory.join("cpu.stat"));
        stats.cpu.periods = detail.of("nr_periods");
        stats.cpu.throttled_periods = detail.of("nr_throttled");
        stats.cpu.throttled_nanoseconds = detail.of("throttled_time");
        stats.cpu.burst_periods = detail.of("nr_bursts");
        stats.cpu.burst_nanoseconds = detail.of("burst_time");
    }
    if let Some(directory) = group.directory("memory") {
        let detail = Keyed::read(&directory.join("memory.stat"));
        let of = |key: &str| detail.of(key);
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
            active_file: of("total_active_file"),
            inactive_file: of("total_inactive_file"),
            pressure: None,
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
    let detail = Keyed::read(&directory.join("memory.stat"));
    let of = |key: &str| detail.of(key);
    let usage = number(&directory.join("memory.current")).unwrap_or(0);
    let cpu = Keyed::read(&directory.join("cpu.stat"));
    let time = |key: &str| cpu.of(key).saturating_mul(1000);
    Stats {
        cpu: CpuStats {
            usage_nanoseconds: time("usage_usec"),
            user_nanoseconds: time("user_usec"),
            system_nanoseconds: time("system_usec"),
            periods: cpu.of("nr_periods"),
            throttled_periods: cpu.of("nr_throttled"),
            throttled_nanoseconds: time("throttled_usec"),
            burst_periods: cpu.of("nr_bursts"),
            burst_nanoseconds: time("burst_usec"),
            pressure: pressure::read(&directory.join("cpu.pressure")),
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
            failures: Keyed::read(&directory.join("memory.events")).of("max"),
            kernel: of("kernel"),
            mapped_file: of("file_mapped"),
            active_file: of("active_file"),
            inactive_file: of("inactive_file"),
            pressure: pressure::read(&directory.join("memory.pressure")),
        },
        processes: number(&directory.join("pids.current")).unwrap_or(0),
        most_processes: number(&directory.join("pids.max")),
        io_pressure: pressure::read(&directory.join("io.pressure")),
    }
}

/// Disk I/O of the cgroup and its descendants.
pub(super) fn devices(group: &Group) -> Vec<DeviceUse> {
    let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
    match group.hierarchy() {
        Hierarchy::V1(_) => {
            let Some(directory) = group.directory("blkio") else { return Vec::new() };
            let bytes = read(&directory.join("blkio.throttle.io_service_bytes_recursive"));
            let operations = read(&directory.join("blkio.throttle.io_serviced_recursive"));
            of_blkio(&bytes, &operations)
        }
        Hierarchy::V2(_) => {
            let Some(directory) = group.directory("") else { return Vec::new() };
            read(&directory.join("io.stat")).lines().filter_map(device_use).collect()
        }
    }
}

/// Parses lines of version 1, such as `8:0 Read 4096`.
fn of_blkio(bytes: &str, operations: &str) -> Vec<DeviceUse> {
    let mut found: Vec<DeviceUse> = Vec::new();
    for (text, in_bytes) in [(bytes, true), (operations, false)] {
        for (device, kind, count) in text.lines().filter_map(blkio_line) {
            let at = found.iter().position(|one| (one.major, one.minor) == device).unwrap_or_else(|| {
                found.push(DeviceUse { major: device.0, minor: device.1, ..DeviceUse::default() });
                found.len() - 1
            });
            match (kind, in_bytes) {
                ("Read", true) => found[at].read_bytes = count,
                ("Write", true) => found[at].written_bytes = count,
                ("Read", false) => found[at].reads = count,
                ("Write", false) => found[at].writes = count,
                _ => {}
            }
        }
    }
    found
}

fn blkio_line(line: &str) -> Option<((u32, u32), &str, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (major, minor) = fields.next()?.split_once(':')?;
    let (kind, count) = (fields.next()?, fields.next()?);
    Some(((major.parse().ok()?, minor.parse().ok()?), kind, count.parse().ok()?))
}

/// Parses a line such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn device_use(line: &str) -> Option<DeviceUse> {
    let mut fields = line.split_ascii_whitespace();
    let (major, minor) = fields.next()?.split_once(':')?;
    let mut found =
        DeviceUse { major: major.parse().ok()?, minor: minor.parse().ok()?, ..DeviceUse::default() };
    for (key, value) in fields.filter_map(|field| field.split_once('=')) {
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
    fn blkio_lines_are_grouped_by_device() {
        let bytes = "8:0 Read 4096\n8:0 Write 8192\n8:0 Total 12288\n8:16 Read 1\nTotal 12289\n";
        let operations = "8:0 Read 1\n8:0 Write 2\nx:y Read 9\n";
        let wanted =
            DeviceUse { major: 8, minor: 0, read_bytes: 4096, written_bytes: 8192, reads: 1, writes: 2 };
        let second = DeviceUse { major: 8, minor: 16, read_bytes: 1, ..DeviceUse::default() };
        assert_eq!(of_blkio(bytes, operations), [wanted, second]);
    }

    #[test]
    fn v2_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| std::fs::write(dir.path().join("pod").join(file), text).unwrap();
        std::fs::create_dir(dir.path().join("pod")).unwrap();
        put("cpu.stat", "usage_usec 1500000\nnr_periods 7\nnr_throttled 2\nnr_bursts 1\nburst_usec 5\n");
        put("memory.current", "100\n");
        put("memory.stat", "anon 10\nfile 60\ninactive_file 30\nactive_file 20\n");
        put("memory.pressure", "some avg10=0.00 avg60=0.50 avg300=0.00 total=12\n");
        let stats = read(&Hierarchy::V2(dir.path().into()).group("/pod").unwrap());
        assert_eq!((stats.cpu.usage_nanoseconds, stats.cpu.periods), (1_500_000_000, 7));
        assert_eq!((stats.cpu.burst_periods, stats.cpu.burst_nanoseconds), (1, 5000));
        assert_eq!((stats.memory.working_set, stats.memory.active_file), (70, 20));
        assert_eq!(stats.memory.pressure.map(|pressure| pressure.some.total_microseconds), Some(12));
        assert_eq!(stats.cpu.pressure, None);
    }

    #[test]
    fn io_stat_lines_parse() {
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
