//! CRI metrics with the names of cAdvisor: one row per metric.

use std::path::Path;
use std::sync::Arc;

use cri::v1::{
    ContainerMetrics, LinuxContainerResources, Metric, MetricDescriptor, MetricType, PodSandboxMetrics,
    UInt64Value,
};
use sys::cgroups::{DeviceUse, Hierarchy, Stats};

use super::records::{Container, Sandbox};
use super::stats::{Traffic, usage};
use super::{Runtime, now};

/// Measurements of a container.
struct ContainerSample {
    stats: Stats,
    started: u64,
    seen: u64,
    out_of_memory_kills: u64,
    processes: u64,
    descriptors: u64,
    sockets: u64,
    resources: LinuxContainerResources,
}

/// The file system that a container writes to.
struct Disk {
    /// Bytes used by the container.
    used: u64,
    size: u64,
    inodes: u64,
    free_inodes: u64,
}

/// Count of one kind of device operation.
struct Operation {
    count: u64,
}

struct Row<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    /// `None` where no value is available.
    read: fn(&T) -> Option<u64>,
}

const fn counter<T>(name: &'static str, help: &'static str, read: fn(&T) -> Option<u64>) -> Row<T> {
    Row { name, help, kind: MetricType::Counter, read }
}

const fn gauge<T>(name: &'static str, help: &'static str, read: fn(&T) -> Option<u64>) -> Row<T> {
    Row { name, help, kind: MetricType::Gauge, read }
}

/// Values are whole numbers in CRI, so times are whole seconds.
const SECOND: u64 = 1_000_000_000;
/// Kernel default.
const DEFAULT_PERIOD: u64 = 100_000;
const DEFAULT_SHARES: u64 = 1024;

const CONTAINER: &[Row<ContainerSample>] = &[
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", |found| {
        Some(found.stats.cpu.usage_nanoseconds / SECOND)
    }),
    counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", |found| {
        Some(found.stats.cpu.user_nanoseconds / SECOND)
    }),
    counter(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        |found| Some(found.stats.cpu.system_nanoseconds / SECOND),
    ),
    counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", |found| {
        Some(found.stats.cpu.periods)
    }),
    counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", |found| {
        Some(found.stats.cpu.throttled_periods)
    }),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |found| Some(found.stats.cpu.throttled_nanoseconds / SECOND),
    ),
    gauge("container_memory_usage_bytes", "Current memory usage in bytes.", |found| {
        Some(found.stats.memory.usage)
    }),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |found| {
        Some(found.stats.memory.working_set)
    }),
    gauge("container_memory_rss", "Size of RSS in bytes.", |found| Some(found.stats.memory.rss)),
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |found| {
        Some(found.stats.memory.cache)
    }),
    gauge("container_memory_swap", "Container swap usage in bytes.", |found| {
        Some(found.stats.memory.swap_usage)
    }),
    counter("container_memory_failures_total", "Cumulative count of memory page faults.", |found| {
        Some(found.stats.memory.page_faults)
    }),
    gauge("container_memory_max_usage_bytes", "Most memory ever used in bytes.", |found| {
        Some(found.stats.memory.peak)
    }),
    gauge("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", |found| {
        Some(found.stats.memory.kernel)
    }),
    gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", |found| {
        Some(found.stats.memory.mapped_file)
    }),
    counter("container_memory_failcnt", "Number of times the memory limit was hit.", |found| {
        Some(found.stats.memory.failures)
    }),
    gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", |found| {
        Some(found.stats.memory.limit.unwrap_or(0))
    }),
    gauge("container_spec_memory_swap_limit_bytes", "Memory and swap limit for the container.", |found| {
        Some(u64::try_from(found.resources.memory_swap_limit_in_bytes).unwrap_or(0))
    }),
    gauge("container_spec_cpu_period", "CPU period of the container in microseconds.", |found| {
        Some(
            u64::try_from(found.resources.cpu_period)
                .ok()
                .filter(|period| *period > 0)
                .unwrap_or(DEFAULT_PERIOD),
        )
    }),
    gauge("container_spec_cpu_quota", "CPU quota of the container in microseconds per period.", |found| {
        u64::try_from(found.resources.cpu_quota).ok().filter(|quota| *quota > 0)
    }),
    gauge("container_spec_cpu_shares", "CPU shares of the container.", |found| {
        Some(
            u64::try_from(found.resources.cpu_shares)
                .ok()
                .filter(|shares| *shares > 0)
                .unwrap_or(DEFAULT_SHARES),
        )
    }),
    counter(
        "container_oom_events_total",
        "Count of out of memory events observed for the container.",
        |found| Some(found.out_of_memory_kills),
    ),
    gauge("container_processes", "Number of processes running inside the container.", |found| {
        Some(found.processes)
    }),
    gauge("container_threads", "Number of threads running inside the container.", |found| {
        Some(found.stats.processes)
    }),
    gauge("container_threads_max", "Most threads allowed inside the container, 0 if unlimited.", |found| {
        Some(found.stats.most_processes.unwrap_or(0))
    }),
    gauge("container_file_descriptors", "Number of open file descriptors of the container.", |found| {
        Some(found.descriptors)
    }),
    gauge("container_sockets", "Number of open sockets of the container.", |found| Some(found.sockets)),
    gauge("container_last_seen", "Last time the container was seen, in seconds since 1970.", |found| {
        Some(found.seen)
    }),
    gauge(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        |found| Some(found.started / SECOND),
    ),
];

const DISK: &[Row<Disk>] = &[
    gauge("container_fs_usage_bytes", "Number of bytes that are consumed by the container.", |found| {
        Some(found.used)
    }),
    gauge("container_fs_limit_bytes", "Number of bytes that the container's file system has.", |found| {
        Some(found.size)
    }),
    gauge("container_fs_inodes_total", "Number of inodes of the container's file system.", |found| {
        Some(found.inodes)
    }),
    gauge("container_fs_inodes_free", "Number of inodes that are free there.", |found| {
        Some(found.free_inodes)
    }),
];

const DEVICE: &[Row<DeviceUse>] = &[
    counter("container_fs_reads_bytes_total", "Cumulative count of bytes read.", |found| {
        Some(found.read_bytes)
    }),
    counter("container_fs_reads_total", "Cumulative count of reads completed.", |found| Some(found.reads)),
    counter("container_fs_writes_bytes_total", "Cumulative count of bytes written.", |found| {
        Some(found.written_bytes)
    }),
    counter("container_fs_writes_total", "Cumulative count of writes completed.", |found| Some(found.writes)),
];

const OPERATION: &[Row<Operation>] =
    &[counter("container_blkio_device_usage_total", "Bytes per device and operation.", |found| {
        Some(found.count)
    })];

const INTERFACE: &[Row<Traffic>] = &[
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received.", |found| {
        Some(found.received[0])
    }),
    counter("container_network_receive_packets_total", "Cumulative count of packets received.", |found| {
        Some(found.received[1])
    }),
    counter(
        "container_network_receive_errors_total",
        "Cumulative count of errors while receiving.",
        |found| Some(found.received[2]),
    ),
    counter(
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving.",
        |found| Some(found.received[3]),
    ),
    counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted.", |found| {
        Some(found.sent[0])
    }),
    counter(
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted.",
        |found| Some(found.sent[1]),
    ),
    counter(
        "container_network_transmit_errors_total",
        "Cumulative count of errors while transmitting.",
        |found| Some(found.sent[2]),
    ),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting.",
        |found| Some(found.sent[3]),
    ),
];

const LABELS: &[&str] = &["id", "name"];
const INTERFACE_LABELS: &[&str] = &["id", "name", "interface"];
const DEVICE_LABELS: &[&str] = &["id", "name", "device"];
const OPERATION_LABELS: &[&str] = &["id", "name", "device", "major", "minor", "operation"];

/// Descriptors of all metrics.
pub(super) fn descriptors() -> Vec<MetricDescriptor> {
    fn describe<T>(rows: &[Row<T>], labels: &[&str]) -> Vec<MetricDescriptor> {
        let one = |row: &Row<T>| MetricDescriptor {
            name: row.name.to_owned(),
            help: row.help.to_owned(),
            label_keys: labels.iter().map(|&label| label.to_owned()).collect(),
        };
        rows.iter().map(one).collect()
    }
    [
        describe(CONTAINER, LABELS),
        describe(DISK, DEVICE_LABELS),
        describe(DEVICE, DEVICE_LABELS),
        describe(OPERATION, OPERATION_LABELS),
        describe(INTERFACE, INTERFACE_LABELS),
    ]
    .concat()
}

fn measure<T>(rows: &[Row<T>], found: &T, labels: &[String], at: i64) -> Vec<Metric> {
    let one = |row: &Row<T>| {
        (row.read)(found).map(|value| Metric {
            name: row.name.to_owned(),
            timestamp: at,
            metric_type: row.kind.into(),
            label_values: labels.to_vec(),
            value: Some(UInt64Value { value }),
        })
    };
    rows.iter().filter_map(one).collect()
}

impl Runtime {
    /// Collects all metrics. This blocks.
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
    let processes = group.processes().unwrap_or_default();
    let (descriptors, sockets) = open_files(&processes);
    let found = ContainerSample {
        stats: group.stats(),
        started: u64::try_from(started.at).unwrap_or(0),
        seen: u64::try_from(at).unwrap_or(0) / SECOND,
        out_of_memory_kills: group.out_of_memory_kills(),
        processes: processes.len() as u64,
        descriptors,
        sockets,
        resources: container.resources.lock().clone().unwrap_or_default(),
    };
    let id = container.meta.id.clone();
    let labels = [id.clone(), container.config.metadata.clone().unwrap_or_default().name];
    let with = |more: &[&str]| -> Vec<String> {
        labels.iter().cloned().chain(more.iter().map(|&label| label.to_owned())).collect()
    };
    let mut metrics = measure(CONTAINER, &found, &labels, at);
    if let Some((disk, device)) = disk(&container.directory) {
        metrics.extend(measure(DISK, &disk, &with(&[&device]), at));
    }
    for used in group.devices() {
        let device = device_name(used.major, used.minor);
        metrics.extend(measure(DEVICE, &used, &with(&[&device]), at));
        let (major, minor) = (used.major.to_string(), used.minor.to_string());
        for (name, count) in [("Read", used.read_bytes), ("Write", used.written_bytes)] {
            let labels = with(&[&device, &major, &minor, name]);
            metrics.extend(measure(OPERATION, &Operation { count }, &labels, at));
        }
    }
    Some(ContainerMetrics { metrics, container_id: id })
}

/// Counts open descriptors, and the sockets among them. An exited process has none.
fn open_files(processes: &[i32]) -> (u64, u64) {
    let (mut all, mut sockets) = (0, 0);
    for pid in processes {
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            all += 1;
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            sockets += u64::from(target.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
        }
    }
    (all, sockets)
}

/// Filesystem of a container's writable layer, and the name of its device.
fn disk(container: &Path) -> Option<(Disk, String)> {
    use std::os::unix::fs::MetadataExt as _;
    let changes = container.join("upper");
    let whole = rustix::fs::statvfs(&changes).ok()?;
    let device = std::fs::metadata(&changes).ok()?.dev();
    let disk = Disk {
        used: usage(&changes).0,
        size: whole.f_blocks.saturating_mul(whole.f_frsize),
        inodes: whole.f_files,
        free_inodes: whole.f_ffree,
    };
    Some((disk, device_name(rustix::fs::major(device), rustix::fs::minor(device))))
}

/// Formats a device like `/dev/sda1`; one without a name, such as a tmpfs, by its numbers.
fn device_name(major: u32, minor: u32) -> String {
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).unwrap_or_default();
    match link.file_name() {
        Some(name) => format!("/dev/{}", name.to_string_lossy()),
        None => format!("{major}:{minor}"),
    }
}
