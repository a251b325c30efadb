//! Checks of memory, disk and file descriptors.

use std::path::{Path, PathBuf};

use super::Finding::{self, Fine, Weak, Wrong};
use super::Row;

/// Enough descriptors for a thousand clients and some files.
const WANTED_FILES: u64 = 4096;
const MEGABYTE: u64 = 1_000_000;
/// Minimum for a cluster to start, and threshold of the warning.
const DISK: (u64, u64) = (64 * MEGABYTE, 2_000 * MEGABYTE);
const MEMORY: (u64, u64) = (96 * MEGABYTE, 512 * MEGABYTE);
const WATCHES: u64 = 8192;
const INSTANCES: u64 = 128;
const PROCESSES: u64 = 4096;

pub fn all(data_dir: &Path) -> Vec<Row> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    vec![
        ("open files", open_files(base::limits::open_files())),
        ("disk", disk(free_disk(data_dir))),
        ("memory", memory(available_memory())),
        (
            "inotify",
            inotify(
                number("/proc/sys/fs/inotify/max_user_instances"),
                number("/proc/sys/fs/inotify/max_user_watches"),
            ),
        ),
        ("processes", processes(number("/proc/sys/kernel/pid_max"))),
    ]
}

fn open_files(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < WANTED_FILES => {
            Weak(format!("the limit is {limit}; raise it to {WANTED_FILES} or more with `ulimit -n`"))
        }
        Some(limit) => Fine(format!("up to {limit}")),
        None => Fine("no limit".to_owned()),
    }
}

/// Free bytes at the nearest existing ancestor of the directory.
fn free_disk(path: &Path) -> Option<u64> {
    let mut there: PathBuf = path.to_owned();
    while !there.exists() {
        there = there.parent()?.to_owned();
    }
    rustix::fs::statvfs(&there).ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn disk(free: Option<u64>) -> Finding {
    let Some(free) = free else { return Weak("cannot read the free space".to_owned()) };
    let shown = format!("{} MB free", free / MEGABYTE);
    if free < DISK.0 {
        Wrong(format!("{shown}: too little for a cluster's data; free space or set another --data-dir"))
    } else if free < DISK.1 {
        Weak(format!("{shown}: images will soon fill it, and pods are evicted when it is full"))
    } else {
        Fine(shown)
    }
}

fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn memory(available: Option<u64>) -> Finding {
    let Some(available) = available else { return Weak("cannot read the available memory".to_owned()) };
    let shown = format!("{} MB available", available / MEGABYTE);
    if available < MEMORY.0 {
        Wrong(format!("{shown}: a cluster needs about 80 MB and would be OOM-killed"))
    } else if available < MEMORY.1 {
        Weak(format!("{shown}: enough for the cluster, little for pods"))
    } else {
        Fine(shown)
    }
}

fn inotify(instances: Option<u64>, watches: Option<u64>) -> Finding {
    let mut low = Vec::new();
    for (name, found, wanted) in
        [("max_user_instances", instances, INSTANCES), ("max_user_watches", watches, WATCHES)]
    {
        if let Some(found) = found.filter(|found| *found < wanted) {
            low.push(format!(
                "fs.inotify.{name} is {found}: raise it with `sysctl fs.inotify.{name}={wanted}`"
            ));
        }
    }
    if low.is_empty() {
        return Fine("enough instances and watches".to_owned());
    }
    Weak(format!("{}; programs in pods that watch files will fail otherwise", low.join("; ")))
}

fn processes(most: Option<u64>) -> Finding {
    match most {
        Some(most) if most < PROCESSES => {
            Weak(format!("at most {most}: raise it with `sysctl kernel.pid_max=32768`"))
        }
        Some(most) => Fine(format!("up to {most}")),
        None => Fine("unknown limit".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(finding: &Finding) -> &'static str {
        match finding {
            Fine(_) => "fine",
            Weak(_) => "weak",
            Wrong(_) => "wrong",
        }
    }

    #[test]
    fn scarce_resources_are_reported() {
        for (finding, want) in [
            (disk(Some(10 * MEGABYTE)), "wrong"),
            (disk(Some(500 * MEGABYTE)), "weak"),
            (disk(Some(50_000 * MEGABYTE)), "fine"),
            (memory(Some(10 * MEGABYTE)), "wrong"),
            (memory(Some(200 * MEGABYTE)), "weak"),
            (memory(Some(4_000 * MEGABYTE)), "fine"),
            (inotify(Some(1), Some(100_000)), "weak"),
            (inotify(Some(128), Some(100_000)), "fine"),
            (open_files(Some(1024)), "weak"),
            (open_files(None), "fine"),
            (processes(Some(100)), "weak"),
        ] {
            assert_eq!(kind(&finding), want, "{finding:?}");
        }
        assert!(free_disk(Path::new("/proc/self/no/such/directory")).is_some());
    }
}
