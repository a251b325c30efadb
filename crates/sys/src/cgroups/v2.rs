//! Cgroup v2: one directory for all controllers.

use std::io;
use std::path::Path;

use super::{Resources, write};

/// Creates the cgroup, with every controller delegated to it.
pub(super) fn create(root: &Path, path: &str) -> io::Result<()> {
    let mut here = root.to_path_buf();
    for part in path.split('/') {
        let available = std::fs::read_to_string(here.join("cgroup.controllers")).unwrap_or_default();
        let enabled = std::fs::read_to_string(here.join("cgroup.subtree_control")).unwrap_or_default();
        let has = |controller: &str| enabled.split_ascii_whitespace().any(|found| found == controller);
        for controller in available.split_ascii_whitespace().filter(|controller| !has(controller)) {
            // A controller that cannot be delegated, such as cpu with real-time processes, is skipped.
            let _ = std::fs::write(here.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        here.push(part);
        std::fs::create_dir_all(&here)?;
    }
    Ok(())
}

pub(super) fn limit(directory: &Path, resources: &Resources) -> io::Result<()> {
    let put = |file: &str, value: Option<String>| match value {
        Some(value) => write(&directory.join(file), &value),
        None => Ok(()),
    };
    let or_max = |limit: i64| if limit < 0 { "max".to_owned() } else { limit.to_string() };
    put(
        "cpu.weight",
        resources.cpu_shares.filter(|shares| *shares > 0).map(|shares| weight(shares).to_string()),
    )?;
    let (quota, period) =
        (resources.cpu_quota.filter(|quota| *quota != 0), resources.cpu_period.filter(|p| *p > 0));
    put(
        "cpu.max",
        match (quota, period) {
            (None, None) => None,
            (quota, period) => Some(format!("{} {}", or_max(quota.unwrap_or(-1)), period.unwrap_or(100_000))),
        },
    )?;
    put("cpuset.cpus", resources.cpuset_cpus.clone().filter(|cpus| !cpus.is_empty()))?;
    put("cpuset.mems", resources.cpuset_mems.clone().filter(|mems| !mems.is_empty()))?;
    let memory = resources.memory_limit.filter(|limit| *limit != 0);
    put("memory.max", memory.map(or_max))?;
    // CRI specifies memory plus swap, version 2 swap alone.
    let swap = resources.swap_limit.filter(|limit| *limit != 0).map(|both| match memory {
        Some(memory) if both >= 0 && memory >= 0 => (both - memory).max(0).to_string(),
        _ => or_max(both),
    });
    match put("memory.swap.max", swap) {
        // A kernel without swap accounting has no such file.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
        other => other?,
    }
    put("pids.max", resources.pids_limit.filter(|limit| *limit != 0).map(or_max))?;
    for (size, bytes) in &resources.hugepages {
        put(&format!("hugetlb.{size}.max"), Some(bytes.to_string()))?;
    }
    for (file, value) in &resources.unified {
        if file.contains('/') || file.starts_with("cgroup.") {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{file} is not a cgroup resource file"),
            ));
        }
        write(&directory.join(file), value)?;
    }
    Ok(())
}

/// Attaches a BPF device program: version 2 has no device files.
pub(super) fn allow_devices(directory: &Path, extra: &[(&Path, &str)]) -> io::Result<()> {
    let program = super::devices::program(&super::devices::rules(extra)?);
    super::devices::attach(directory, &program)
}

/// Maps CPU shares from 2 to 262144 to weights from 1 to 10000, so that the default of 1024 is near 39: the mapping
/// that Kubernetes documents.
fn weight(shares: u64) -> u64 {
    1 + ((shares.clamp(2, 262_144) - 2) * 9999) / 262_142
}

#[cfg(test)]
mod tests {
    #[test]
    fn shares_map_to_weights() {
        for (shares, weight) in [(0, 1), (2, 1), (1024, 39), (262_144, 10_000), (u64::MAX, 10_000)] {
            assert_eq!(super::weight(shares), weight);
        }
    }
}
