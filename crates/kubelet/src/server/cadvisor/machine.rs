//! Metrics of the machine: processors, memory, versions.

use std::collections::BTreeSet;
use std::fs;

use crate::node;
use crate::server::metrics::Page;

/// Processors, physical cores and sockets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Topology {
    processors: usize,
    cores: usize,
    sockets: usize,
}

/// Parses `/proc/cpuinfo`. Machines that do not list cores there have one per processor.
fn topology(text: &str) -> Topology {
    let (mut cores, mut sockets, mut processors, mut socket) = (BTreeSet::new(), BTreeSet::new(), 0, "");
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        match key.trim() {
            "processor" => processors += 1,
            "physical id" => {
                socket = value.trim();
                sockets.insert(socket);
            }
            "core id" => {
                cores.insert((socket, value.trim()));
            }
            _ => {}
        }
    }
    Topology {
        processors,
        cores: if cores.is_empty() { processors } else { cores.len() },
        sockets: sockets.len().max(1),
    }
}

/// Value of a key in `/etc/os-release`.
fn os_release(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_default().trim_matches('"').to_owned()
}

pub fn write(page: &mut Page, runtime_version: &str) {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let kernel = rustix::system::uname();
    let name = "cadvisor_version_info";
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, \
                cadvisor version & cadvisor revision.";
    page.metric(name, "gauge", help);
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", env!("CARGO_PKG_VERSION")),
        ("dockerVersion", runtime_version),
        ("kernelVersion", &kernel.release().to_string_lossy()),
        ("osVersion", &os_release(&release, "PRETTY_NAME")),
    ];
    page.row(name, &labels, 1);
    let found = topology(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // Empty on machines without them, as in cAdvisor.
    let (machine, system) = (text("/etc/machine-id"), text("/sys/class/dmi/id/product_uuid"));
    let boot = text("/proc/sys/kernel/random/boot_id");
    let labels = [("boot_id", boot.as_str()), ("machine_id", &machine), ("system_uuid", &system)];
    let logical = std::thread::available_parallelism().map_or(found.processors, std::num::NonZero::get);
    let swap = node::swap_capacity();
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", logical.to_string()),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", found.cores.to_string()),
        ("machine_cpu_sockets", "Number of CPU sockets.", found.sockets.to_string()),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            node::memory_capacity().to_string(),
        ),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", swap.to_string()),
    ] {
        page.metric(name, "gauge", help);
        page.row(name, &labels, value);
    }
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    let has_failed = found.processors == 0 || node::memory_capacity() == 0;
    page.single("machine_scrape_error", "gauge", help, u8::from(has_failed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_with_two_threads_are_counted_once() {
        let one = |processor: u8, socket: u8, core: u8| {
            format!("processor\t: {processor}\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n")
        };
        let text = [one(0, 0, 0), one(1, 0, 0), one(2, 1, 0), one(3, 1, 0)].concat();
        assert_eq!(topology(&text), Topology { processors: 4, cores: 2, sockets: 2 });
        assert_eq!(topology("processor\t: 0\n"), Topology { processors: 1, cores: 1, sockets: 1 });
        assert_eq!(os_release("NAME=x\nPRETTY_NAME=\"Some 1\"\n", "PRETTY_NAME"), "Some 1");
    }
}
