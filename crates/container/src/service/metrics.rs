//! Metrics by CRI, with the names that cAdvisor made known: one row per metric.

use std::sync::Arc;

use cri::v1::{ContainerMetrics, Metric, MetricDescriptor, MetricType, PodSandboxMetrics, UInt64Value};
use sys::cgroups::{Hierarchy, Stats};

use super::records::{Container, Sandbox};
use super::stats::{Traffic, usage};
use super::{Runtime, now};

/// What a container is measured by.
struct Measured {
    stats: Stats,
    started: u64,
    disk: (u64, u64),
    out_of_memory_kills: u64,
}

struct Row<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: fn(&T) -> u64,
}

const fn counter<T>(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> Row<T> {
    Row { name, help, kind: MetricType::Counter, read }
}

const fn gauge<T>(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> Row<T> {
    Row { name, help, kind: MetricType::Gauge, read }
}

/// Values are whole numbers in CRI, so times are whole seconds.
const SECOND: u64 = 1_000_000_000;

const CONTAINER: &[Row<Measured>] = &[
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", |found| {
        found.stats.cpu.usage_nanoseconds / SECOND
    }),
    counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", |found| {
        found.stats.cpu.user_nanoseconds / SECOND
    }),
    counter(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        |found| found.stats.cpu.system_nanoseconds / SECOND,
    ),
    counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", |found| {
        found.stats.cpu.periods
    }),
    counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", |found| {
        found.stats.cpu.throttled_periods
    }),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |found| found.stats.cpu.throttled_nanoseconds / SECOND,
    ),
    gauge("container_memory_usage_bytes", "Current memory usage in bytes.", |found| found.stats.memory.usage),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |found| {
        found.stats.memory.working_set
    }),
    gauge("container_memory_rss", "Size of RSS in bytes.", |found| found.stats.memory.rss),
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |found| {
        found.stats.memory.cache
    }),
    gauge("container_memory_swap", "Container swap usage in bytes.", |found| found.stats.memory.swap_usage),
    counter("container_memory_failures_total", "Cumulative count of memory page faults.", |found| {
        found.stats.memory.page_faults
    }),
    gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", |found| {
        found.stats.memory.limit.unwrap_or(0)
    }),
    counter(
        "container_oom_events_total",
        "Count of out of memory events observed for the container.",
        |found| found.out_of_memory_kills,
    ),
    gauge("container_processes", "Number of processes running inside the container.", |found| {
        found.stats.processes
    }),
    gauge(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        |found| found.started / SECOND,
    ),
    gauge("container_fs_usage_bytes", "Number of bytes that are consumed by the container.", |found| {
        found.disk.0
    }),
    gauge("container_fs_inodes_total", "Number of inodes that are consumed by the container.", |found| {
        found.disk.1
    }),
];

const INTERFACE: &[Row<Traffic>] = &[
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received.", |found| {
        found.received[0]
    }),
    counter("container_network_receive_packets_total", "Cumulative count of packets received.", |found| {
        found.received[1]
    }),
    counter(
        "container_network_receive_errors_total",
        "Cumulative count of errors while receiving.",
        |found| found.received[2],
    ),
    counter(
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving.",
        |found| found.received[3],
    ),
    counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted.", |found| {
        found.sent[0]
    }),
    counter(
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted.",
        |found| found.sent[1],
    ),
    counter(
        "container_network_transmit_errors_total",
        "Cumulative count of errors while transmitting.",
        |found| found.sent[2],
    ),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting.",
        |found| found.sent[3],
    ),
];

const LABELS: &[&str] = &["id", "name"];
const INTERFACE_LABELS: &[&str] = &["id", "name", "interface"];

/// What there is, for those who want to know before they ask.
pub(super) fn descriptors() -> Vec<MetricDescriptor> {
    let describe = |name: &str, help: &str, labels: &[&str]| MetricDescriptor {
        name: name.to_owned(),
        help: help.to_owned(),
        label_keys: labels.iter().map(|&label| label.to_owned()).collect(),
    };
    let of_containers = CONTAINER.iter().map(|row| describe(row.name, row.help, LABELS));
    let of_interfaces = INTERFACE.iter().map(|row| describe(row.name, row.help, INTERFACE_LABELS));
    of_containers.chain(of_interfaces).collect()
}

fn measure<T>(rows: &[Row<T>], found: &T, labels: &[String], at: i64) -> Vec<Metric> {
    let one = |row: &Row<T>| Metric {
        name: row.name.to_owned(),
        timestamp: at,
        metric_type: row.kind.into(),
        label_values: labels.to_vec(),
        value: Some(UInt64Value { value: (row.read)(found) }),
    };
    rows.iter().map(one).collect()
}

impl Runtime {
    /// Everything there is to measure now. This blocks.
    pub(super) fn metrics(&self) -> Vec<PodSandboxMetrics> {
        let Ok(hierarchy) = Hierarchy::detect() else { return Vec::new() };
        let sandboxes: Vec<Arc<Sandbox>> = self.state.read().sandboxes.values().cloned().collect();
        let ready = sandboxes.iter().filter(|sandbox| sandbox.ready());
        ready.map(|sandbox| self.sandbox_metrics(sandbox, &hierarchy)).collect()
    }

    fn sandbox_metrics(&self, sandbox: &Arc<Sandbox>, hierarchy: &Hierarchy) -> PodSandboxMetrics {
        let at = now();
        let id = sandbox.meta.lock().id.clone();
        let containers = self.containers_of(&id);
        let name = sandbox.config.metadata.clone().unwrap_or_default().name;
        let interfaces = self.traffic(sandbox, &containers).unwrap_or_default();
        let of_interface = |traffic: &Traffic| {
            measure(INTERFACE, traffic, &[id.clone(), name.clone(), traffic.name.clone()], at)
        };
        PodSandboxMetrics {
            metrics: interfaces.iter().flat_map(of_interface).collect(),
            container_metrics: containers
                .iter()
                .filter_map(|container| container_metrics(container, hierarchy, at))
                .collect(),
            pod_sandbox_id: id,
        }
    }
}

fn container_metrics(container: &Container, hierarchy: &Hierarchy, at: i64) -> Option<ContainerMetrics> {
    let started = container.running()?;
    let group = hierarchy.group(&container.meta.cgroup)?;
    let found = Measured {
        stats: group.stats(),
        started: u64::try_from(started.at).unwrap_or(0),
        disk: usage(&container.directory.join("upper")),
        out_of_memory_kills: group.out_of_memory_kills(),
    };
    let name = container.config.metadata.clone().unwrap_or_default().name;
    let id = container.meta.id.clone();
    Some(ContainerMetrics { metrics: measure(CONTAINER, &found, &[id.clone(), name], at), container_id: id })
}
