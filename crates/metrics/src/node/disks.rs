//! Block devices and file systems.

use std::collections::BTreeSet;
use std::path::Path;

use super::page::{Page, of_millis};
use super::read;

/// Bytes of a sector in `/proc/diskstats`.
const SECTOR: u64 = 512;

/// Conversion of a column of `/proc/diskstats` to a value.
#[derive(Clone, Copy)]
enum Column {
    Count,
    Sectors,
    Millis,
    Gauge,
}

/// Columns after the name of the device, in their order.
const COLUMNS: [(&str, Column, &str); 11] = [
    ("node_disk_reads_completed_total", Column::Count, "The total number of reads completed successfully."),
    ("node_disk_reads_merged_total", Column::Count, "The total number of reads merged."),
    ("node_disk_read_bytes_total", Column::Sectors, "The total number of bytes read successfully."),
    ("node_disk_read_time_seconds_total", Column::Millis, "The total number of seconds spent by all reads."),
    ("node_disk_writes_completed_total", Column::Count, "The total number of writes completed successfully."),
    ("node_disk_writes_merged_total", Column::Count, "The number of writes merged."),
    ("node_disk_written_bytes_total", Column::Sectors, "The total number of bytes written successfully."),
    (
        "node_disk_write_time_seconds_total",
        Column::Millis,
        "This is the total number of seconds spent by all writes.",
    ),
    ("node_disk_io_now", Column::Gauge, "The number of I/Os currently in progress."),
    ("node_disk_io_time_seconds_total", Column::Millis, "Total seconds spent doing I/Os."),
    (
        "node_disk_io_time_weighted_seconds_total",
        Column::Millis,
        "The weighted # of seconds spent doing I/Os.",
    ),
];

/// Partitions, RAM disks and loop devices are left out, as node-exporter does.
fn is_listed(device: &str) -> bool {
    let unnumbered = device.trim_end_matches(|letter: char| letter.is_ascii_digit());
    if unnumbered == device {
        return true;
    }
    if ["ram", "loop", "fd"].contains(&unnumbered) {
        return false;
    }
    let is_disk = ["hd", "sd", "vd", "xvd"].iter().any(|kind| {
        unnumbered.strip_prefix(kind).is_some_and(|letter| {
            letter.len() == 1 && letter.bytes().all(|letter| letter.is_ascii_lowercase())
        })
    });
    let is_nvme_partition = device.starts_with("nvme") && unnumbered.ends_with('p');
    !is_disk && !is_nvme_partition
}

pub fn of_devices(proc: &Path, page: &mut Page) {
    let text = read(proc, "diskstats");
    let devices: Vec<(&str, Vec<u64>)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(2);
            let name = words.next().filter(|name| is_listed(name))?;
            Some((name, words.map_while(|word| word.parse().ok()).collect()))
        })
        .collect();
    for (at, (name, column, help)) in COLUMNS.into_iter().enumerate() {
        match column {
            Column::Gauge => page.gauge(name, help),
            Column::Count | Column::Sectors | Column::Millis => page.counter(name, help),
        }
        for (device, values) in &devices {
            let Some(value) = values.get(at) else { continue };
            let labels = [("device", *device)];
            match column {
                Column::Count | Column::Gauge => page.sample(name, &labels, value),
                Column::Sectors => page.sample(name, &labels, value.saturating_mul(SECTOR)),
                Column::Millis => page.sample(name, &labels, of_millis(*value)),
            }
        }
    }
}

/// Local types of file systems with capacity. Others are left out, those of the network because a server that does not
/// respond would block the scrape.
const TYPES: [&str; 13] = [
    "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "vfat", "xfs",
    "zfs",
];

/// Directories whose mounts are left out, as node-exporter does: those of the kernel and of containers.
const OMITTED: [&str; 5] = ["/dev", "/proc", "/sys", "/run/credentials", "/var/lib/kubelet"];

/// File systems on a page, at most.
const MAX_FILE_SYSTEMS: usize = 200;

/// Decodes the octal escapes of `/proc/mounts`.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, letter)| text.replace(escape, letter))
}

struct FileSystem {
    device: String,
    mount: String,
    kind: String,
    /// Size, free, available, files and free files.
    values: [u64; 5],
    read_only: bool,
}

fn file_systems(proc: &Path) -> Vec<FileSystem> {
    let mut seen = BTreeSet::new();
    let text = read(proc, "1/mounts");
    let text = if text.is_empty() { read(proc, "self/mounts") } else { text };
    let found = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (device, mount, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let (device, mount) = (unescaped(device), unescaped(mount));
        let below = |directory: &str| {
            mount.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if !TYPES.contains(&kind)
            || OMITTED.iter().any(|directory| below(directory))
            || !seen.insert((device.clone(), mount.clone()))
        {
            return None;
        }
        let stat = rustix::fs::statvfs(mount.as_str()).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Some(FileSystem {
            device,
            mount,
            kind: kind.to_owned(),
            values: [
                bytes(stat.f_blocks),
                bytes(stat.f_bfree),
                bytes(stat.f_bavail),
                stat.f_files,
                stat.f_ffree,
            ],
            read_only: options.split(',').any(|option| option == "ro"),
        })
    });
    found.take(MAX_FILE_SYSTEMS).collect()
}

pub fn of_file_systems(proc: &Path, page: &mut Page) {
    let all = file_systems(proc);
    let rows = [
        ("node_filesystem_size_bytes", "Filesystem size in bytes."),
        ("node_filesystem_free_bytes", "Filesystem free space in bytes."),
        ("node_filesystem_avail_bytes", "Filesystem space available to non-root users in bytes."),
        ("node_filesystem_files", "Filesystem total file nodes."),
        ("node_filesystem_files_free", "Filesystem total free file nodes."),
    ];
    let labels = |one: &FileSystem| [one.device.clone(), one.kind.clone(), one.mount.clone()];
    for (at, (name, help)) in rows.into_iter().enumerate() {
        page.gauge(name, help);
        for one in &all {
            let [device, kind, mount] = labels(one);
            let labels = [("device", &*device), ("fstype", &kind), ("mountpoint", &mount)];
            page.sample(name, &labels, one.values.get(at).copied().unwrap_or_default());
        }
    }
    let name = "node_filesystem_readonly";
    page.gauge(name, "Filesystem read-only status.");
    for one in &all {
        let [device, kind, mount] = labels(one);
        let labels = [("device", &*device), ("fstype", &kind), ("mountpoint", &mount)];
        page.sample(name, &labels, u8::from(one.read_only));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_and_memory_disks_are_left_out() {
        for (device, listed) in [
            ("sda", true),
            ("sda1", false),
            ("vdb12", false),
            ("nvme0n1", true),
            ("nvme0n1p2", false),
            ("loop3", false),
            ("ram0", false),
            ("dm-0", true),
            ("md127", true),
            ("mmcblk0", true),
        ] {
            assert_eq!(is_listed(device), listed, "{device}");
        }
    }
}
