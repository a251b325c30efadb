//! Cgroup v1: a directory per controller.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::{Group, Resources, write};

pub(super) const CONTROLLERS: &[&str] = &[
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "hugetlb",
    "net_cls",
    "net_prio",
    "perf_event",
];

pub(super) fn create(controllers: &BTreeMap<String, PathBuf>, path: &str) -> io::Result<()> {
    for (controller, root) in controllers {
        if controller != "cpuset" {
            std::fs::create_dir_all(root.join(path))?;
            continue;
        }
        // A new cpuset cgroup has no CPUs and accepts no process until it does.
        let mut here = root.clone();
        for part in path.split('/') {
            let parent = here.clone();
            here.push(part);
            std::fs::create_dir_all(&here)?;
            for file in ["cpuset.cpus", "cpuset.mems"] {
                inherit(&parent.join(file), &here.join(file))?;
            }
        }
    }
    Ok(())
}

fn inherit(from: &Path, to: &Path) -> io::Result<()> {
    let read = |file: &Path| match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    };
    match (read(from)?, read(to)?) {
        (Some(theirs), Some(ours)) if ours.trim().is_empty() => write(to, theirs.trim()),
        _ => Ok(()),
    }
}

pub(super) fn limit(group: &Group, resources: &Resources) -> io::Result<()> {
    let put = |controller: &str, file: &str, value: Option<String>| match (group.directory(controller), value)
    {
        (Some(directory), Some(value)) => write(&directory.join(file), &value),
        _ => Ok(()),
    };
    let text = |number: Option<i64>| number.map(|number| number.to_string());
    put(
        "cpu",
        "cpu.shares",
        resources.cpu_shares.filter(|shares| *shares > 0).map(|shares| shares.to_string()),
    )?;
    // The quota is checked against the parent's with the current period: lift it while the period changes.
    if let Some(period) = resources.cpu_period.filter(|period| *period > 0) {
        put("cpu", "cpu.cfs_quota_us", Some("-1".to_owned()))?;
        put("cpu", "cpu.cfs_period_us", Some(period.to_string()))?;
    }
    put("cpu", "cpu.cfs_quota_us", text(resources.cpu_quota.filter(|quota| *quota != 0)))?;
    put("cpuset", "cpuset.cpus", resources.cpuset_cpus.clone().filter(|cpus| !cpus.is_empty()))?;
    put("cpuset", "cpuset.mems", resources.cpuset_mems.clone().filter(|mems| !mems.is_empty()))?;
    memory(group, resources)?;
    put("pids", "pids.max", resources.pids_limit.filter(|limit| *limit != 0).map(limit_or_max))?;
    for (size, bytes) in &resources.hugepages {
        put("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), Some(bytes.to_string()))?;
    }
    Ok(())
}

pub(super) fn allow_devices(group: &Group, extra: &[(&Path, &str)]) -> io::Result<()> {
    let Some(directory) = group.directory("devices") else { return Ok(()) };
    write(&directory.join("devices.deny"), "a")?;
    for rule in super::devices::rules(extra)? {
        let number = |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        let kind = if rule.block { 'b' } else { 'c' };
        let line = format!("{kind} {}:{} {}", number(rule.major), number(rule.minor), rule.permissions());
        write(&directory.join("devices.allow"), &line)?;
    }
    Ok(())
}

fn limit_or_max(limit: i64) -> String {
    if limit < 0 { "max".to_owned() } else { limit.to_string() }
}

/// Memory plus swap may never be less than memory alone, so the order depends on the direction.
fn memory(group: &Group, resources: &Resources) -> io::Result<()> {
    let Some(directory) = group.directory("memory") else { return Ok(()) };
    let plain = directory.join("memory.limit_in_bytes");
    let swap = directory.join("memory.memsw.limit_in_bytes");
    let plain_value = resources.memory_limit.filter(|limit| *limit != 0).map(|limit| limit.to_string());
    let swap_value =
        resources.swap_limit.filter(|limit| *limit != 0 && swap.exists()).map(|limit| limit.to_string());
    match (plain_value, swap_value) {
        (Some(value), Some(with_swap)) => {
            if write(&plain, &value).is_err() {
                write(&swap, &with_swap)?;
                return write(&plain, &value);
            }
            write(&swap, &with_swap)
        }
        (Some(value), None) => write(&plain, &value),
        (None, Some(with_swap)) => write(&swap, &with_swap),
        (None, None) => Ok(()),
    }
}
