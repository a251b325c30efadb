//! Kernel, time, open files and tracked connections.

use std::path::Path;

use super::page::Page;
use super::{ClockDiscipline, read};

/// State of the clock.
pub fn of_clock(clock: &ClockDiscipline, page: &mut Page) {
    for (name, help, value) in [
        ("offset_seconds", "Time offset in between local system and reference clock.", clock.offset),
        ("maxerror_seconds", "Maximum error in seconds.", clock.max_error),
        ("estimated_error_seconds", "Estimated error in seconds.", clock.estimated_error),
        ("frequency_adjustment_ratio", "Local clock frequency adjustment.", clock.frequency_ratio),
        ("status", "Value of the status array bits.", f64::from(clock.status)),
        ("tai_offset_seconds", "International Atomic Time (TAI) offset.", f64::from(clock.tai_offset)),
        (
            "sync_status",
            "Is clock synchronized to a reliable server (1 = yes, 0 = no).",
            f64::from(u8::from(clock.is_synchronized)),
        ),
    ] {
        let name = format!("node_timex_{name}");
        page.gauge(&name, help);
        page.sample(&name, &[], value);
    }
}

/// Version of the exporter, which is Ferry; dashboards list machines by it.
pub fn of_build(_: &Path, page: &mut Page) {
    let name = "node_exporter_build_info";
    page.gauge(
        name,
        "A metric with a constant '1' value labeled by the version of Ferry, which serves this page.",
    );
    let labels = [("goos", std::env::consts::OS), ("version", env!("CARGO_PKG_VERSION"))];
    page.sample(name, &labels, 1);
}

pub fn of_system(proc: &Path, page: &mut Page) {
    let kernel = |name: &str| read(proc, &format!("sys/kernel/{name}")).trim().to_owned();
    let (domain, node, release) = (kernel("domainname"), kernel("hostname"), kernel("osrelease"));
    let (system, version) = (kernel("ostype"), kernel("version"));
    let name = "node_uname_info";
    page.gauge(name, "Labeled system information as provided by the uname system call.");
    let labels = [
        ("domainname", &*domain),
        ("machine", std::env::consts::ARCH),
        ("nodename", &node),
        ("release", &release),
        ("sysname", &system),
        ("version", &version),
    ];
    page.sample(name, &labels, 1);
    let millis = base::clock::Clock::system().now().as_millisecond();
    let name = "node_time_seconds";
    page.gauge(name, "System time in seconds since epoch (1970).");
    page.sample(name, &[], format_args!("{}.{:03}", millis / 1000, millis.rem_euclid(1000)));
    let files = read(proc, "sys/fs/file-nr");
    let mut files = files.split_whitespace().map(str::parse::<u64>);
    let (allocated, maximum) = (files.next(), files.nth(1));
    let connections =
        |name: &str| Some(read(proc, &format!("sys/net/netfilter/{name}")).trim().parse::<u64>());
    for (name, help, value) in [
        ("node_filefd_allocated", "File descriptor statistics: allocated.", allocated),
        ("node_filefd_maximum", "File descriptor statistics: maximum.", maximum),
        (
            "node_nf_conntrack_entries",
            "Number of currently allocated flow entries for connection tracking.",
            connections("nf_conntrack_count"),
        ),
        (
            "node_nf_conntrack_entries_limit",
            "Maximum size of connection tracking table.",
            connections("nf_conntrack_max"),
        ),
    ] {
        if let Some(Ok(value)) = value {
            page.gauge(name, help);
            page.sample(name, &[], value);
        }
    }
}
