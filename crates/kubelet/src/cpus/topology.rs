//! CPUs of the machine with their core, socket, NUMA node and last-level cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::cpu_set::CpuSet;

/// A level of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Core,
    Cache,
    Socket,
    NumaNode,
}

/// Position of a CPU by level. Cores are numbered by their first CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuInfo {
    pub core: usize,
    pub cache: usize,
    pub socket: usize,
    pub node: usize,
}

impl CpuInfo {
    #[must_use]
    pub fn at(&self, level: Level) -> usize {
        match level {
            Level::Core => self.core,
            Level::Cache => self.cache,
            Level::Socket => self.socket,
            Level::NumaNode => self.node,
        }
    }
}

/// CPUs that are online.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTopology(BTreeMap<usize, CpuInfo>);

impl FromIterator<(usize, CpuInfo)> for CpuTopology {
    fn from_iter<I: IntoIterator<Item = (usize, CpuInfo)>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

fn number(path: &Path) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn list(path: &Path) -> Option<CpuSet> {
    CpuSet::parse(&fs::read_to_string(path).ok()?).ok()
}

impl CpuTopology {
    /// Reads the directory `/sys/devices/system`. Missing files count as one core per CPU, one socket, one NUMA
    /// node and one cache per socket.
    #[must_use]
    pub fn read(system: &Path) -> Self {
        let online = list(&system.join("cpu/online")).unwrap_or_default();
        let mut nodes = BTreeMap::new();
        for entry in fs::read_dir(system.join("node")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<usize>().ok());
            if let Some((id, cpus)) = id.zip(list(&entry.path().join("cpulist"))) {
                nodes.extend(cpus.iter().map(|cpu| (cpu, id)));
            }
        }
        let info = |cpu: usize| {
            let directory = system.join(format!("cpu/cpu{cpu}"));
            let siblings = list(&directory.join("topology/thread_siblings_list"));
            let first = siblings.and_then(|siblings| siblings.intersection(&online).iter().next());
            let node = nodes.get(&cpu).copied().unwrap_or(0);
            let socket = number(&directory.join("topology/physical_package_id")).unwrap_or(0);
            let cache = number(&directory.join("cache/index3/id")).unwrap_or(socket);
            CpuInfo { core: first.unwrap_or(cpu), socket, cache, node }
        };
        online.iter().map(|cpu| (cpu, info(cpu))).collect()
    }

    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// Position of a CPU.
    #[cfg(test)]
    #[must_use]
    pub fn of(&self, cpu: usize) -> Option<&CpuInfo> {
        self.0.get(&cpu)
    }

    /// CPUs at one of the positions of a level.
    #[must_use]
    pub fn cpus_at(&self, level: Level, ids: &BTreeSet<usize>) -> CpuSet {
        self.0.iter().filter(|(_, info)| ids.contains(&info.at(level))).map(|(cpu, _)| *cpu).collect()
    }

    /// Positions of a level that CPUs of the set have.
    #[must_use]
    pub fn ids(&self, level: Level, cpus: &CpuSet) -> BTreeSet<usize> {
        self.0.iter().filter(|(cpu, _)| cpus.contains(**cpu)).map(|(_, info)| info.at(level)).collect()
    }

    /// Number of positions of a level.
    #[must_use]
    pub fn count(&self, level: Level) -> usize {
        self.0.values().map(|info| info.at(level)).collect::<BTreeSet<_>>().len()
    }

    /// CPUs per position of a level, on average.
    #[must_use]
    pub fn cpus_per(&self, level: Level) -> usize {
        self.0.len().checked_div(self.count(level)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_read_from_sysfs() {
        let system = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        write("cpu/online", "0-3\n");
        for (cpu, siblings, socket) in [(0, "0,2", 0), (1, "1,3", 1), (2, "0,2", 0), (3, "1,3", 1)] {
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), siblings);
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{socket}\n"));
        }
        write("node/node0/cpulist", "0,2\n");
        write("node/node1/cpulist", "1,3\n");
        write("node/possible", "0-1\n");
        let topology = CpuTopology::read(system.path());
        let infos: Vec<_> = topology.cpus().iter().filter_map(|cpu| topology.of(cpu).copied()).collect();
        let info = |core, node| CpuInfo { core, cache: node, socket: node, node };
        assert_eq!(infos, [info(0, 0), info(1, 1), info(0, 0), info(1, 1)]);
        assert_eq!((topology.cpus_per(Level::Core), topology.count(Level::Socket)), (2, 2));
        assert!(CpuTopology::read(Path::new("/does-not-exist")).cpus().is_empty());
    }
}
