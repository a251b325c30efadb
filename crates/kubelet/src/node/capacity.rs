//! Capacity of the machine and allocatable resources.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::housekeeping::Signal;
use crate::housekeeping_config::HousekeepingConfig;

/// Amounts by resource, in whole units (thousandths for CPU).
pub type Amounts = BTreeMap<String, i64>;

/// Bytes of memory.
#[must_use]
pub fn memory_capacity() -> i64 {
    fs::read_to_string("/proc/meminfo").map_or(0, |text| meminfo(&text, "MemTotal"))
}

fn meminfo(text: &str, name: &str) -> i64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<i64>().ok());
    kilobytes.map_or(0, |kilobytes| kilobytes.saturating_mul(1024))
}

/// Available memory in bytes.
#[must_use]
pub fn memory_available() -> i64 {
    fs::read_to_string("/proc/meminfo").map_or(0, |text| meminfo(&text, "MemAvailable"))
}

/// Bytes of swap.
#[must_use]
pub fn swap_capacity() -> i64 {
    fs::read_to_string("/proc/meminfo").map_or(0, |text| meminfo(&text, "SwapTotal"))
}

/// Total and available bytes of a file system.
#[must_use]
pub fn file_system(path: &Path) -> (i64, i64) {
    rustix::fs::statvfs(path).map_or((0, 0), |stat| {
        let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
        (bytes(stat.f_blocks), bytes(stat.f_bavail))
    })
}

/// A file system: total and available bytes, total and free inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystem {
    pub bytes: (i64, i64),
    pub inodes: (i64, i64),
}

/// File system of a path; zeros if it cannot be read.
#[must_use]
pub fn file_system_of(path: &Path) -> FileSystem {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let inodes = rustix::fs::statvfs(path).map_or((0, 0), |stat| (count(stat.f_files), count(stat.f_ffree)));
    FileSystem { bytes: file_system(path), inodes }
}

/// Limit and current number of processes and threads.
#[must_use]
pub fn processes() -> (i64, i64) {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let most = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
    let most = most.into_iter().flatten().min().unwrap_or(0);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = load.split_whitespace().nth(3).and_then(|word| word.split_once('/')?.1.parse().ok());
    (most, running.unwrap_or(0))
}

/// Capacity of the machine.
#[must_use]
pub fn capacity(directory: &Path, max_pods: u32) -> Amounts {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut amounts = Amounts::from([
        ("cpu".to_owned(), i64::try_from(processors).unwrap_or(1).saturating_mul(1000)),
        ("memory".to_owned(), memory_capacity()),
        ("ephemeral-storage".to_owned(), file_system(directory).0),
        ("pods".to_owned(), i64::from(max_pods)),
    ]);
    amounts.extend(huge_pages());
    amounts
}

/// Reserved huge pages, by size.
fn huge_pages() -> Amounts {
    let Ok(entries) = fs::read_dir("/sys/kernel/mm/hugepages") else { return Amounts::new() };
    let sizes = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let kilobytes: i64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse::<i64>().ok()?;
        let shown = if kilobytes % (1024 * 1024) == 0 {
            format!("{}Gi", kilobytes / 1024 / 1024)
        } else if kilobytes % 1024 == 0 {
            format!("{}Mi", kilobytes / 1024)
        } else {
            format!("{kilobytes}Ki")
        };
        Some((format!("hugepages-{shown}"), count.saturating_mul(kilobytes).saturating_mul(1024)))
    });
    sizes.collect()
}

/// Reports whether a resource is outside of Kubernetes' own domain, such as `example.com/gpu`.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// Allocatable resources: capacity minus reservations and hard eviction thresholds.
#[must_use]
pub fn allocatable(capacity: &Amounts, housekeeping: &HousekeepingConfig) -> Amounts {
    let huge: i64 =
        capacity.iter().filter(|(name, _)| name.starts_with("hugepages-")).map(|(_, amount)| *amount).sum();
    capacity
        .iter()
        .map(|(name, amount)| {
            let evicted = match name.as_str() {
                "memory" => housekeeping.eviction.hard(Signal::Memory),
                "ephemeral-storage" => housekeeping.eviction.hard(Signal::NodeFs),
                _ => None,
            };
            let evicted = evicted.map_or(0, |least| least.of(*amount));
            let reserved = housekeeping.reserved.get(name).copied().unwrap_or(0);
            // CPU is counted in thousandths here, other resources in whole units.
            let reserved = if name == "cpu" { reserved } else { reserved / 1000 };
            let huge = if name == "memory" { huge } else { 0 };
            let left = amount.saturating_sub(evicted).saturating_sub(reserved).saturating_sub(huge);
            (name.clone(), left.max(0))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::housekeeping::Amount;

    #[test]
    fn allocatable_subtracts_reservations() {
        assert_eq!(meminfo("MemTotal:       2048 kB\nMemFree: 1 kB\n", "MemTotal"), 2 * 1024 * 1024);
        let all = Amounts::from([
            ("cpu".to_owned(), 2000),
            ("memory".to_owned(), 1 << 30),
            ("ephemeral-storage".to_owned(), 1000),
        ]);
        let reserved = BTreeMap::from([("cpu".to_owned(), 500), ("memory".to_owned(), 1000 << 20)]);
        let mut housekeeping = HousekeepingConfig { reserved, ..HousekeepingConfig::default() };
        housekeeping.eviction.set_hard(&BTreeMap::from([
            (Signal::Memory, Amount::Count(100 << 20)),
            (Signal::NodeFs, Amount::Percent(10.0)),
        ]));
        let left = allocatable(&all, &housekeeping);
        assert_eq!(left["cpu"], 1500);
        assert_eq!(left["memory"], (1 << 30) - (101 << 20));
        assert_eq!(left["ephemeral-storage"], 900);
    }
}
