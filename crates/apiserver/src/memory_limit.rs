//! The memory that this process may use.

use std::path::Path;

/// Memory limit of this process: the machine's memory, or the lowest limit of its cgroups.
pub fn memory_limit() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(Path::new("/sys/fs/cgroup"), &groups).chain(machine()).min().unwrap_or(u64::MAX)
}

fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Limits of the cgroups in the text of `/proc/PID/cgroup`, and of their parents. In a container with its own cgroup
/// namespace the path is that of the root.
fn limits(root: &Path, groups: &str) -> impl Iterator<Item = u64> {
    let found = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?) {
            ("", path) => Some((root.to_owned(), "memory.max", path)),
            (controllers, path) if controllers.split(',').any(|name| name == "memory") => {
                Some((root.join("memory"), "memory.limit_in_bytes", path))
            }
            _ => None,
        }
    });
    let mut all = Vec::new();
    for (root, file, path) in found {
        let mut group = root.join(path.trim_start_matches('/'));
        loop {
            let text = std::fs::read_to_string(group.join(file)).unwrap_or_default();
            all.extend(text.trim().parse::<u64>());
            if group == root || !group.pop() {
                break;
            }
        }
    }
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limit_is_the_lowest_of_nested_cgroups() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        write("memory/x/memory.limit_in_bytes", "900\n");
        write("memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
        let lowest = |groups: &str| limits(root.path(), groups).min();
        assert_eq!(lowest("0::/a/b\n"), Some(1000));
        assert_eq!(lowest("5:cpu:/x\n4:memory,hugetlb:/x/y\n0::/\n"), Some(900));
        assert_eq!(lowest("0::/\n"), None);
        assert!(memory_limit() > 0);
    }
}
