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
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub cpu: CpuStats,
    pub memory: MemoryStats,
    pub processes: u64,
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
        };
    }
    if let Some(directory) = group.directory("pids") {
        stats.processes = number(&directory.join("pids.current")).unwrap_or(0);
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
        },
        processes: number(&directory.join("pids.current")).unwrap_or(0),
    }
}
