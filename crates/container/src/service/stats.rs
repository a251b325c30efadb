//! Resource usage of containers and pods.

use std::sync::Arc;

use cri::v1::{
    ContainerAttributes, ContainerFilter, ContainerStats, ContainerStatsFilter, CpuUsage,
    FilesystemIdentifier, FilesystemUsage, LinuxPodSandboxStats, MemoryUsage, NetworkInterfaceUsage,
    NetworkUsage, PodSandboxAttributes, PodSandboxFilter, PodSandboxStats, PodSandboxStatsFilter,
    ProcessUsage, UInt64Value,
};
use sys::cgroups::{Hierarchy, Stats};

use super::records::{Container, Sandbox};
use super::{Runtime, now};

fn value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

fn cpu(stats: &Stats, at: i64) -> CpuUsage {
    CpuUsage {
        timestamp: at,
        usage_core_nano_seconds: value(stats.cpu.usage_nanoseconds),
        ..CpuUsage::default()
    }
}

fn memory(stats: &Stats, at: i64) -> MemoryUsage {
    let memory = &stats.memory;
    MemoryUsage {
        timestamp: at,
        working_set_bytes: value(memory.working_set),
        available_bytes: memory
            .limit
            .map(|limit| UInt64Value { value: limit.saturating_sub(memory.working_set) }),
        usage_bytes: value(memory.usage),
        rss_bytes: value(memory.rss),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        ..MemoryUsage::default()
    }
}

impl Runtime {
    /// Reads kernel files and walks the writable layer: this blocks.
    pub(super) fn container_stats(&self, container: &Container) -> ContainerStats {
        let at = now();
        let group = Hierarchy::detect().ok().and_then(|hierarchy| hierarchy.group(&container.meta.cgroup));
        let stats = group.filter(|_| container.running().is_some()).map(|group| group.stats());
        let (bytes, files) = usage(&container.directory.join("upper"));
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: container.meta.id.clone(),
                metadata: container.config.metadata.clone(),
                labels: container.config.labels.clone(),
                annotations: container.config.annotations.clone(),
            }),
            cpu: stats.as_ref().map(|stats| cpu(stats, at)),
            memory: stats.as_ref().map(|stats| memory(stats, at)),
            writable_layer: Some(FilesystemUsage {
                timestamp: at,
                fs_id: Some(FilesystemIdentifier { mountpoint: self.config.root.display().to_string() }),
                used_bytes: value(bytes),
                inodes_used: value(files),
            }),
            ..ContainerStats::default()
        }
    }

    pub(super) fn sandbox_stats(&self, sandbox: &Arc<Sandbox>) -> PodSandboxStats {
        let at = now();
        let meta = sandbox.meta.lock().clone();
        let group = Hierarchy::detect().ok().and_then(|hierarchy| hierarchy.group(&meta.cgroup_parent));
        let stats = group.map(|group| group.stats()).unwrap_or_default();
        let containers = self.containers_of(&meta.id);
        let network = self.traffic(sandbox, &containers).map(|interfaces| network(&interfaces, at));
        PodSandboxStats {
            attributes: Some(PodSandboxAttributes {
                id: meta.id,
                metadata: sandbox.config.metadata.clone(),
                labels: sandbox.config.labels.clone(),
                annotations: sandbox.config.annotations.clone(),
            }),
            linux: Some(LinuxPodSandboxStats {
                cpu: Some(cpu(&stats, at)),
                memory: Some(memory(&stats, at)),
                network,
                process: Some(ProcessUsage { timestamp: at, process_count: value(stats.processes) }),
                containers: containers.iter().map(|container| self.container_stats(container)).collect(),
                ..LinuxPodSandboxStats::default()
            }),
            ..PodSandboxStats::default()
        }
    }
}

impl Runtime {
    /// Traffic of the pod's interfaces, read through one of its processes. Pods on the host's network have no
    /// interfaces of their own.
    pub(super) fn traffic(&self, sandbox: &Sandbox, containers: &[Arc<Container>]) -> Option<Vec<Traffic>> {
        if sandbox.host_network() {
            return None;
        }
        let started = containers.iter().find_map(|container| container.running())?;
        let text = std::fs::read_to_string(format!("/proc/{}/net/dev", started.pid)).ok()?;
        Some(text.lines().filter_map(parse_traffic).filter(|found| found.name != "lo").collect())
    }
}

impl Runtime {
    /// Statistics of the running containers that match the filter. This blocks.
    pub(super) fn stats_of_containers(&self, filter: Option<ContainerStatsFilter>) -> Vec<ContainerStats> {
        let filter = filter.map(|filter| ContainerFilter {
            id: filter.id,
            pod_sandbox_id: filter.pod_sandbox_id,
            label_selector: filter.label_selector,
            state: None,
        });
        let chosen = self.select_containers(filter);
        let running = chosen.iter().filter(|container| container.running().is_some());
        running.map(|container| self.container_stats(container)).collect()
    }

    /// This blocks.
    pub(super) fn stats_of_sandboxes(&self, filter: Option<PodSandboxStatsFilter>) -> Vec<PodSandboxStats> {
        let filter = filter.map(|filter| PodSandboxFilter {
            id: filter.id,
            label_selector: filter.label_selector,
            state: None,
        });
        self.select_sandboxes(filter).iter().map(|sandbox| self.sandbox_stats(sandbox)).collect()
    }
}

/// Counters of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub name: String,
    /// Bytes, packets, errors, drops.
    pub received: [u64; 4],
    pub sent: [u64; 4],
}

/// A line of `/proc/net/dev`: eight numbers for each direction.
fn parse_traffic(line: &str) -> Option<Traffic> {
    let (name, rest) = line.split_once(':')?;
    let numbers: Vec<u64> = rest.split_ascii_whitespace().map_while(|number| number.parse().ok()).collect();
    let four = |from: usize| numbers.get(from..from + 4)?.try_into().ok();
    Some(Traffic { name: name.trim().to_owned(), received: four(0)?, sent: four(8)? })
}

fn network(interfaces: &[Traffic], at: i64) -> NetworkUsage {
    let mut described = interfaces.iter().map(|traffic| NetworkInterfaceUsage {
        name: traffic.name.clone(),
        rx_bytes: value(traffic.received[0]),
        rx_errors: value(traffic.received[2]),
        tx_bytes: value(traffic.sent[0]),
        tx_errors: value(traffic.sent[2]),
    });
    NetworkUsage { timestamp: at, default_interface: described.next(), interfaces: described.collect() }
}

/// Disk usage and number of files below a directory; links are not followed.
pub(super) fn usage(root: &std::path::Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let (mut bytes, mut files) = (0_u64, 0_u64);
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(found) = entry.metadata() else { continue };
            files += 1;
            bytes = bytes.saturating_add(found.blocks().saturating_mul(512));
            if found.is_dir() {
                left.push(entry.path());
            }
        }
    }
    (bytes, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_net_dev_lines_are_parsed() {
        let line = "  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0";
        let wanted = Traffic { name: "eth0".into(), received: [1000, 10, 1, 2], sent: [2000, 20, 3, 4] };
        assert_eq!(parse_traffic(line), Some(wanted));
        for bad in ["Inter-|   Receive", " face |bytes packets", "eth0: 1 2 3", ""] {
            assert_eq!(parse_traffic(bad), None, "{bad}");
        }
    }
}
