//! Table of metrics: names, types, help texts and labels of cAdvisor.

use std::time::UNIX_EPOCH;

use jiff::Timestamp;
use sys::cgroups::{GroupSpec, Pressure, Stats};

use super::Labels;
use super::devices::{DeviceSample, DiskSample};
use super::network::Interface;
use crate::server::metrics::Page;

/// Measurements of one cgroup or container.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub labels: Labels,
    pub stats: Stats,
    pub spec: GroupSpec,
    pub oom_kills: Option<u64>,
    pub processes: Option<u64>,
    /// Open descriptors, and the sockets among them.
    pub descriptors: Option<(u64, u64)>,
    pub devices: Vec<DeviceSample>,
    pub disks: Vec<DiskSample>,
    pub network: Vec<Interface>,
    /// False for values that the runtime reported, which has few of them.
    pub from_cgroup: bool,
    /// Set if nothing but traffic is known.
    pub network_only: bool,
}

/// Receives the values of the additional labels, and a value.
type Put<'a> = &'a mut dyn FnMut(&[&str], f64);

struct Row {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Additional labels.
    labels: &'static [&'static str],
    read: fn(&Sample, Put<'_>),
}

const fn counter(name: &'static str, help: &'static str, read: fn(&Sample, Put<'_>)) -> Row {
    Row { name, kind: "counter", help, labels: &[], read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&Sample, Put<'_>)) -> Row {
    Row { name, kind: "gauge", help, labels: &[], read }
}

impl Row {
    const fn by(mut self, labels: &'static [&'static str]) -> Self {
        self.labels = labels;
        self
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
fn float(value: u64) -> f64 {
    value as f64
}

fn seconds(nanoseconds: u64) -> f64 {
    float(nanoseconds) / 1e9
}

/// Puts a value that cgroups have and runtimes do not report.
fn of_cgroup(sample: &Sample, put: Put<'_>, value: f64) {
    if sample.from_cgroup {
        put(&[], value);
    }
}

/// Puts a value of the quota, if there is one.
fn of_quota(sample: &Sample, put: Put<'_>, value: f64) {
    if sample.spec.cpu.is_some_and(|cpu| cpu.quota.is_some()) {
        put(&[], value);
    }
}

fn of_devices(sample: &Sample, put: Put<'_>, value: fn(&sys::cgroups::DeviceUse) -> u64) {
    for one in &sample.devices {
        put(&[&one.device], float(value(&one.used)));
    }
}

fn of_disks(sample: &Sample, put: Put<'_>, value: fn(&DiskSample) -> Option<u64>) {
    for one in &sample.disks {
        if let Some(value) = value(one) {
            put(&[&one.device], float(value));
        }
    }
}

fn of_interfaces(sample: &Sample, put: Put<'_>, value: fn(&Interface) -> u64) {
    for one in &sample.network {
        put(&[&one.name], float(value(one)));
    }
}

fn waiting(pressure: Option<Pressure>, put: Put<'_>) {
    pressure.into_iter().for_each(|found| put(&[], float(found.some.total_microseconds) / 1e6));
}

fn stalled(pressure: Option<Pressure>, put: Put<'_>) {
    pressure.into_iter().for_each(|found| put(&[], float(found.full.total_microseconds) / 1e6));
}

/// The limit, 0 if there is none.
fn of_memory_limit(sample: &Sample, put: Put<'_>, value: fn(&sys::cgroups::MemorySpec) -> Option<u64>) {
    if let Some(spec) = &sample.spec.memory {
        put(&[], float(value(spec).unwrap_or(0)));
    }
}

const CPU: &[Row] = &[
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", |s, put| {
        if s.stats.cpu.usage_nanoseconds > 0 {
            put(&["total"], seconds(s.stats.cpu.usage_nanoseconds));
        }
    })
    .by(&["cpu"]),
    counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", |s, put| {
        of_cgroup(s, put, seconds(s.stats.cpu.user_nanoseconds));
    }),
    counter(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        |s, put| {
            of_cgroup(s, put, seconds(s.stats.cpu.system_nanoseconds));
        },
    ),
    counter(
        "container_cpu_cfs_periods_total",
        "Number of elapsed enforcement period intervals.",
        |s, put| {
            of_quota(s, put, float(s.stats.cpu.periods));
        },
    ),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Number of throttled period intervals.",
        |s, put| {
            of_quota(s, put, float(s.stats.cpu.throttled_periods));
        },
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |s, put| of_quota(s, put, seconds(s.stats.cpu.throttled_nanoseconds)),
    ),
    counter("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", |s, put| {
        of_quota(s, put, float(s.stats.cpu.burst_periods));
    }),
    counter(
        "container_cpu_cfs_burst_seconds_total",
        "Total time duration the container has been bursted.",
        |s, put| of_quota(s, put, seconds(s.stats.cpu.burst_nanoseconds)),
    ),
];

const MEMORY: &[Row] = &[
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |s, put| {
        of_cgroup(s, put, float(s.stats.memory.cache));
    }),
    gauge("container_memory_rss", "Size of RSS in bytes.", |s, put| put(&[], float(s.stats.memory.rss))),
    gauge("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", |s, put| {
        of_cgroup(s, put, float(s.stats.memory.kernel));
    }),
    gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", |s, put| {
        of_cgroup(s, put, float(s.stats.memory.mapped_file));
    }),
    gauge("container_memory_swap", "Container swap usage in bytes.", |s, put| {
        put(&[], float(s.stats.memory.swap_usage));
    }),
    counter("container_memory_failcnt", "Number of memory usage hits limits", |s, put| {
        of_cgroup(s, put, float(s.stats.memory.failures));
    }),
    gauge(
        "container_memory_usage_bytes",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |s, put| put(&[], float(s.stats.memory.usage)),
    ),
    gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", |s, put| {
        of_cgroup(s, put, float(s.stats.memory.peak));
    }),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |s, put| {
        put(&[], float(s.stats.memory.working_set));
    }),
    gauge("container_memory_total_active_file_bytes", "Current total active file in bytes.", |s, put| {
        of_cgroup(s, put, float(s.stats.memory.active_file));
    }),
    gauge("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", |s, put| {
        of_cgroup(s, put, float(s.stats.memory.inactive_file));
    }),
    counter(
        "container_memory_failures_total",
        "Cumulative count of memory allocation failures.",
        |s, put| {
            for scope in ["container", "hierarchy"] {
                put(&["pgfault", scope], float(s.stats.memory.page_faults));
                put(&["pgmajfault", scope], float(s.stats.memory.major_page_faults));
            }
        },
    )
    .by(&["failure_type", "scope"]),
    counter(
        "container_oom_events_total",
        "Count of out of memory events observed for the container",
        |s, put| s.oom_kills.into_iter().for_each(|kills| put(&[], float(kills))),
    ),
];

const DISK: &[Row] = &[
    gauge("container_fs_inodes_free", "Number of available Inodes", |s, put| {
        of_disks(s, put, |disk| disk.inodes_free);
    })
    .by(&["device"]),
    gauge("container_fs_inodes_total", "Number of Inodes", |s, put| of_disks(s, put, |disk| disk.inodes))
        .by(&["device"]),
    gauge(
        "container_fs_limit_bytes",
        "Number of bytes that can be consumed by the container on this filesystem.",
        |s, put| of_disks(s, put, |disk| disk.limit),
    )
    .by(&["device"]),
    gauge(
        "container_fs_usage_bytes",
        "Number of bytes that are consumed by the container on this filesystem.",
        |s, put| of_disks(s, put, |disk| Some(disk.used)),
    )
    .by(&["device"]),
    counter("container_fs_reads_bytes_total", "Cumulative count of bytes read", |s, put| {
        of_devices(s, put, |used| used.read_bytes);
    })
    .by(&["device"]),
    counter("container_fs_reads_total", "Cumulative count of reads completed", |s, put| {
        of_devices(s, put, |used| used.reads);
    })
    .by(&["device"]),
    counter("container_fs_writes_bytes_total", "Cumulative count of bytes written", |s, put| {
        of_devices(s, put, |used| used.written_bytes);
    })
    .by(&["device"]),
    counter("container_fs_writes_total", "Cumulative count of writes completed", |s, put| {
        of_devices(s, put, |used| used.writes);
    })
    .by(&["device"]),
    counter("container_blkio_device_usage_total", "Blkio Device bytes usage", |s, put| {
        for one in &s.devices {
            let (major, minor) = (one.used.major.to_string(), one.used.minor.to_string());
            for (operation, bytes) in [("Read", one.used.read_bytes), ("Write", one.used.written_bytes)] {
                put(&[&one.device, &major, &minor, operation], float(bytes));
            }
        }
    })
    .by(&["device", "major", "minor", "operation"]),
];

const NETWORK: &[Row] = &[
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received", |s, put| {
        of_interfaces(s, put, |one| one.received.bytes);
    })
    .by(&["interface"]),
    counter("container_network_receive_packets_total", "Cumulative count of packets received", |s, put| {
        of_interfaces(s, put, |one| one.received.packets);
    })
    .by(&["interface"]),
    counter(
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        |s, put| of_interfaces(s, put, |one| one.received.dropped),
    )
    .by(&["interface"]),
    counter(
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving",
        |s, put| of_interfaces(s, put, |one| one.received.errors),
    )
    .by(&["interface"]),
    counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", |s, put| {
        of_interfaces(s, put, |one| one.sent.bytes);
    })
    .by(&["interface"]),
    counter(
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted",
        |s, put| {
            of_interfaces(s, put, |one| one.sent.packets);
        },
    )
    .by(&["interface"]),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        |s, put| of_interfaces(s, put, |one| one.sent.dropped),
    )
    .by(&["interface"]),
    counter(
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        |s, put| of_interfaces(s, put, |one| one.sent.errors),
    )
    .by(&["interface"]),
];

const PROCESSES: &[Row] = &[
    gauge("container_processes", "Number of processes running inside the container.", |s, put| {
        s.processes.into_iter().for_each(|count| put(&[], float(count)));
    }),
    gauge("container_file_descriptors", "Number of open file descriptors for the container.", |s, put| {
        s.descriptors.into_iter().for_each(|(all, _)| put(&[], float(all)));
    }),
    gauge("container_sockets", "Number of open sockets for the container.", |s, put| {
        s.descriptors.into_iter().for_each(|(_, sockets)| put(&[], float(sockets)));
    }),
    gauge(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |s, put| of_cgroup(s, put, float(s.stats.most_processes.unwrap_or(0))),
    ),
    gauge("container_threads", "Number of threads running inside the container", |s, put| {
        of_cgroup(s, put, float(s.stats.processes));
    }),
];

const PRESSURE: &[Row] = &[
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |s, put| stalled(s.stats.cpu.pressure, put),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |s, put| waiting(s.stats.cpu.pressure, put),
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        |s, put| stalled(s.stats.memory.pressure, put),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to memory congestion.",
        |s, put| waiting(s.stats.memory.pressure, put),
    ),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |s, put| stalled(s.stats.io_pressure, put),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to IO congestion.",
        |s, put| waiting(s.stats.io_pressure, put),
    ),
];

const SPEC: &[Row] = &[
    gauge(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        |s, put| {
            let since = s.spec.created.and_then(|created| created.duration_since(UNIX_EPOCH).ok());
            since.into_iter().for_each(|since| put(&[], float(since.as_secs())));
        },
    ),
    gauge("container_spec_cpu_period", "CPU period of the container.", |s, put| {
        s.spec.cpu.into_iter().for_each(|cpu| put(&[], float(cpu.period)));
    }),
    gauge("container_spec_cpu_quota", "CPU quota of the container.", |s, put| {
        s.spec.cpu.and_then(|cpu| cpu.quota).into_iter().for_each(|quota| put(&[], float(quota)));
    }),
    gauge("container_spec_cpu_shares", "CPU share of the container.", |s, put| {
        s.spec.cpu.into_iter().for_each(|cpu| put(&[], float(cpu.shares)));
    }),
    gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", |s, put| {
        of_memory_limit(s, put, |spec| spec.limit);
    }),
    gauge("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |s, put| {
        of_memory_limit(s, put, |spec| spec.swap_limit);
    }),
    gauge(
        "container_spec_memory_reservation_limit_bytes",
        "Memory reservation limit for the container.",
        |s, put| of_memory_limit(s, put, |spec| spec.reservation),
    ),
];

/// Writes the rows of all samples. Labels are in alphabetical order, as other exporters have them.
pub fn write(page: &mut Page, samples: &[Sample], now: Timestamp, has_failed: bool) {
    let whole = || samples.iter().filter(|sample| !sample.network_only);
    for table in [CPU, MEMORY, DISK, PROCESSES, PRESSURE, SPEC] {
        table.iter().for_each(|row| write_row(page, row, whole()));
    }
    NETWORK.iter().for_each(|row| write_row(page, row, samples.iter()));
    let name = "container_last_seen";
    page.metric(name, "gauge", "Last time a container was seen by the exporter");
    for sample in whole() {
        page.row(name, &labels_of(sample, &[], &[]), now.as_second());
    }
    page.single(
        "container_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
        u8::from(has_failed),
    );
}

fn write_row<'a>(page: &mut Page, row: &Row, samples: impl Iterator<Item = &'a Sample>) {
    let mut begun = false;
    for sample in samples {
        (row.read)(sample, &mut |more, value| {
            if !begun {
                page.metric(row.name, row.kind, row.help);
                begun = true;
            }
            page.row(row.name, &labels_of(sample, row.labels, more), value);
        });
    }
}

fn labels_of<'a>(sample: &'a Sample, names: &[&'a str], values: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    let own = &sample.labels;
    let mut labels = vec![
        ("container", own.container.as_str()),
        ("id", &own.id),
        ("image", &own.image),
        ("name", &own.name),
        ("namespace", &own.namespace),
        ("pod", &own.pod),
    ];
    if !names.is_empty() {
        labels.extend(names.iter().copied().zip(values.iter().copied()));
        labels.sort_unstable_by_key(|(name, _)| *name);
    }
    labels
}
