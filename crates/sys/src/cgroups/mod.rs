//! Cgroups, versions 1 and 2, as mounted on this machine.

pub mod detach;
mod devices;
pub mod pressure;
mod spec;
mod stats;
mod v1;
mod v2;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use pressure::{Pressure, Stalled};
pub use spec::{CpuSpec, GroupSpec, MemorySpec};
pub use stats::{CpuStats, DeviceUse, MemoryStats, Stats};

use crate::mounts;

/// Resource limits of a cgroup. `None` is left unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Microseconds per period; negative is no limit.
    pub cpu_quota: Option<i64>,
    pub cpu_period: Option<u64>,
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    /// Bytes; negative is no limit.
    pub memory_limit: Option<i64>,
    pub swap_limit: Option<i64>,
    pub pids_limit: Option<i64>,
    /// Page size, as `2MB`, and bytes.
    pub hugepages: Vec<(String, u64)>,
    /// Cgroup v2 files, written verbatim.
    pub unified: BTreeMap<String, String>,
}

/// Mount points of the hierarchies.
///
/// ```no_run
/// use sys::cgroups::Hierarchy;
///
/// let hierarchy = Hierarchy::detect()?;
/// let Some(group) = hierarchy.group("/kubepods/pod1") else { panic!("a path with ..") };
/// group.create()?;
/// group.join(0)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Directory of each controller; several controllers may share one.
    V1(BTreeMap<String, PathBuf>),
    V2(PathBuf),
}

impl Hierarchy {
    /// Detects mounted hierarchies. Version 2 is used if it has the controllers, i.e. without version 1.
    pub fn detect() -> io::Result<Self> {
        Self::from_mounts(&mounts::list()?).ok_or_else(|| io::Error::other("no cgroup hierarchy is mounted"))
    }

    fn from_mounts(mounted: &[mounts::Mounted]) -> Option<Self> {
        let mut controllers = BTreeMap::new();
        for mount in mounted.iter().filter(|mount| mount.filesystem == "cgroup") {
            for option in mount.super_options.split(',').filter(|option| v1::CONTROLLERS.contains(option)) {
                controllers.entry(option.to_owned()).or_insert_with(|| mount.target.clone());
            }
        }
        if !controllers.is_empty() {
            return Some(Self::V1(controllers));
        }
        mounted.iter().find(|mount| mount.filesystem == "cgroup2").map(|mount| Self::V2(mount.target.clone()))
    }

    #[must_use]
    pub fn is_v2(&self) -> bool {
        matches!(self, Self::V2(_))
    }

    /// Cgroup at `path`, such as `/kubepods/burstable/pod1`; `None` for a path that leaves the hierarchy.
    #[must_use]
    pub fn group(&self, path: &str) -> Option<Group> {
        let relative = path.trim_matches('/');
        let safe = relative.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        safe.then(|| Group { hierarchy: self.clone(), path: relative.to_owned() })
    }

    /// Root cgroup, which can be neither limited nor removed.
    #[must_use]
    pub fn root(&self) -> Group {
        Group { hierarchy: self.clone(), path: String::new() }
    }
}

/// A cgroup, which may not exist yet.
#[derive(Clone, Debug)]
pub struct Group {
    hierarchy: Hierarchy,
    path: String,
}

impl Group {
    #[must_use]
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Directories: one per hierarchy.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        let mut roots: Vec<&PathBuf> = match &self.hierarchy {
            Hierarchy::V1(controllers) => controllers.values().collect(),
            Hierarchy::V2(root) => vec![root],
        };
        roots.sort();
        roots.dedup();
        roots.into_iter().map(|root| root.join(&self.path)).collect()
    }

    /// Directory of a controller.
    fn directory(&self, controller: &str) -> Option<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V1(controllers) => controllers.get(controller).map(|root| root.join(&self.path)),
            Hierarchy::V2(root) => Some(root.join(&self.path)),
        }
    }

    /// Creates the cgroup with all its parents.
    pub fn create(&self) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::V1(controllers) => v1::create(controllers, &self.path),
            Hierarchy::V2(root) => v2::create(root, &self.path),
        }
    }

    #[must_use]
    pub fn exists(&self) -> bool {
        self.directories().iter().any(|directory| directory.exists())
    }

    /// Sets limits.
    pub fn limit(&self, resources: &Resources) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::V1(_) => v1::limit(self, resources),
            Hierarchy::V2(root) => v2::limit(&root.join(&self.path), resources),
        }
    }

    /// Moves a process into the cgroup; 0 is the calling one.
    pub fn join(&self, pid: i32) -> io::Result<()> {
        for directory in self.directories() {
            write(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Processes of the cgroup and its descendants.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        let mut found = Vec::new();
        for directory in self.directories() {
            processes_below(&directory, 0, &mut found)?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Processes of the cgroup itself, without its descendants.
    #[must_use]
    pub fn direct_processes(&self) -> Vec<i32> {
        let listed =
            self.listing_directory().map(|found| std::fs::read_to_string(found.join("cgroup.procs")));
        let pids = listed.and_then(Result::ok).unwrap_or_default();
        pids.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0).collect()
    }

    /// Cgroups directly below this one.
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let Some(directory) = self.listing_directory() else { return Vec::new() };
        let names = children(&directory).unwrap_or_default().into_iter();
        let names = names.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        names.filter_map(|name| self.hierarchy.group(&format!("{}/{name}", self.path))).collect()
    }

    /// Directory whose children stand for those of all hierarchies.
    fn listing_directory(&self) -> Option<PathBuf> {
        self.directory("cpu").or_else(|| self.directories().pop())
    }

    /// Path in the hierarchy, such as `/kubepods/burstable`; the root is `/`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("/{}", self.path)
    }

    /// Last part of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Kills all processes of the cgroup and waits for their exit, for at most `patience`.
    pub fn kill(&self, patience: Duration) -> io::Result<()> {
        if let Hierarchy::V2(root) = &self.hierarchy {
            let all = root.join(&self.path).join("cgroup.kill");
            if all.exists() {
                write(&all, "1")?;
            }
        }
        let end = Instant::now() + patience;
        loop {
            let left = self.processes()?;
            if left.is_empty() {
                return Ok(());
            }
            for pid in &left {
                crate::process::kill(*pid, libc::SIGKILL)?;
            }
            if Instant::now() > end {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("timed out waiting for processes {left:?} to exit"),
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Removes the cgroup and its descendants. Processes must be gone; waits briefly for exiting ones.
    pub fn remove(&self) -> io::Result<()> {
        for directory in self.directories() {
            let mut tries = 0;
            loop {
                match remove_below(&directory, 0) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < 100 => {
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    other => break other?,
                }
            }
        }
        Ok(())
    }

    /// Denies all devices but the default ones and `extra`: host paths with permissions.
    pub fn allow_devices(&self, extra: &[(&Path, &str)]) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::V1(_) => v1::allow_devices(self, extra),
            Hierarchy::V2(root) => v2::allow_devices(&root.join(&self.path), extra),
        }
    }

    /// Number of OOM kills in the cgroup.
    #[must_use]
    pub fn out_of_memory_kills(&self) -> u64 {
        let (controller, file) = match &self.hierarchy {
            Hierarchy::V1(_) => ("memory", "memory.oom_control"),
            Hierarchy::V2(_) => ("memory", "memory.events"),
        };
        self.directory(controller).and_then(|found| keyed(&found.join(file), "oom_kill")).unwrap_or(0)
    }

    /// Resource usage. Missing files count as zero.
    #[must_use]
    pub fn stats(&self) -> Stats {
        stats::read(self)
    }

    /// Limits in force.
    #[must_use]
    pub fn spec(&self) -> GroupSpec {
        spec::read(self)
    }

    /// Disk I/O counters, if the kernel has them.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceUse> {
        stats::devices(self)
    }
}

/// Maximum nesting depth, as a guard: containers may create cgroups of their own.
const MAX_DEPTH: usize = 32;

fn processes_below(directory: &Path, depth: usize, found: &mut Vec<i32>) -> io::Result<()> {
    let listed = match std::fs::read_to_string(directory.join("cgroup.procs")) {
        Err(error) if gone(&error) => return Ok(()),
        other => other?,
    };
    found.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    if depth < MAX_DEPTH {
        for child in children(directory)? {
            processes_below(&child, depth + 1, found)?;
        }
    }
    Ok(())
}

fn remove_below(directory: &Path, depth: usize) -> io::Result<()> {
    if depth < MAX_DEPTH {
        for child in children(directory)? {
            remove_below(&child, depth + 1)?;
        }
    }
    match std::fs::remove_dir(directory) {
        Err(error) if gone(&error) => Ok(()),
        other => other,
    }
}

fn children(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if gone(&error) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Writes a value to a cgroup file; the error names both.
fn write(file: &Path, value: &str) -> io::Result<()> {
    std::fs::write(file, value).map_err(|error| {
        io::Error::new(error.kind(), format!("failed to write {value:?} to {}: {error}", file.display()))
    })
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Looks up a key in a file of `key value` lines.
fn keyed(file: &Path, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(target: &str, filesystem: &str, options: &str) -> mounts::Mounted {
        mounts::Mounted {
            root: "/".into(),
            target: target.into(),
            source: "none".into(),
            filesystem: filesystem.into(),
            super_options: options.into(),
        }
    }

    #[test]
    fn hierarchy_version_is_detected() {
        let v2 = mounted("/sys/fs/cgroup", "cgroup2", "rw");
        assert_eq!(
            Hierarchy::from_mounts(std::slice::from_ref(&v2)),
            Some(Hierarchy::V2("/sys/fs/cgroup".into()))
        );
        let both =
            [v2, mounted("/c/cpu", "cgroup", "rw,cpu,cpuacct"), mounted("/c/s", "cgroup", "rw,name=systemd")];
        let Some(Hierarchy::V1(controllers)) = Hierarchy::from_mounts(&both) else { panic!("version 1") };
        assert_eq!(controllers.keys().collect::<Vec<_>>(), ["cpu", "cpuacct"]);
        assert_eq!(Hierarchy::from_mounts(&[]), None);
    }

    #[test]
    fn group_path_stays_in_hierarchy() {
        let hierarchy = Hierarchy::V2("/sys/fs/cgroup".into());
        for (path, good) in [("/a/b", true), ("a", true), ("", false), ("/../x", false), ("a//b", false)] {
            assert_eq!(hierarchy.group(path).is_some(), good, "{path}");
        }
    }

    #[test]
    fn v2_limits_are_written() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids cpuset").unwrap();
        let group = Hierarchy::V2(dir.path().into()).group("/pods/one").unwrap();
        group.create().unwrap();
        group
            .limit(&Resources {
                cpu_shares: Some(1024),
                cpu_quota: Some(50_000),
                cpu_period: Some(100_000),
                memory_limit: Some(1 << 20),
                swap_limit: Some(1 << 20),
                pids_limit: Some(-1),
                ..Resources::default()
            })
            .unwrap();
        for (file, expected) in [
            ("cpu.weight", "39"),
            ("cpu.max", "50000 100000"),
            ("memory.max", "1048576"),
            ("memory.swap.max", "0"),
            ("pids.max", "max"),
        ] {
            let path = dir.path().join("pods/one").join(file);
            assert_eq!(std::fs::read_to_string(path).unwrap(), expected, "{file}");
        }
        let enabled = std::fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap();
        assert!(enabled.starts_with('+'), "{enabled}");
    }

    /// Runs on this machine's hierarchy, as root.
    #[test]
    fn cgroup_limits_kill_and_remove() {
        let Ok(hierarchy) = Hierarchy::detect() else { return println!("skipped: no cgroup hierarchy") };
        let group = hierarchy.group(&format!("/ferry-test-{}/inner", std::process::id())).unwrap();
        let parent = hierarchy.group(&format!("/ferry-test-{}", std::process::id())).unwrap();
        if group.create().is_err() {
            return println!("skipped: cgroups are not writable");
        }
        let outcome = std::panic::catch_unwind(|| {
            group
                .limit(&Resources {
                    memory_limit: Some(64 << 20),
                    pids_limit: Some(10),
                    ..Default::default()
                })
                .unwrap();
            let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let pid = i32::try_from(sleeper.id()).unwrap();
            group.join(pid).unwrap();
            assert_eq!(parent.processes().unwrap(), [pid]);
            assert_eq!(group.out_of_memory_kills(), 0);
            // Zombies stay listed until they are reaped.
            let reaper = std::thread::spawn(move || sleeper.wait());
            group.kill(Duration::from_secs(10)).unwrap();
            reaper.join().unwrap().unwrap();
        });
        let _ = group.kill(Duration::from_secs(5));
        parent.remove().unwrap();
        assert!(!parent.exists());
        outcome.unwrap();
    }
}
