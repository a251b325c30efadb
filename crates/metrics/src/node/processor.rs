//! Cores, load and pressure.

use std::path::Path;

use super::page::{Page, of_ticks};
use super::read;

/// Columns of `/proc/stat` in their order.
const MODES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];

/// Lines of `/proc/stat` with one number.
const NUMBERS: [(&str, &str, &str, bool); 6] = [
    ("btime", "node_boot_time_seconds", "Node boot time, in unixtime.", false),
    ("ctxt", "node_context_switches_total", "Total number of context switches.", true),
    ("processes", "node_forks_total", "Total number of forks.", true),
    ("intr", "node_intr_total", "Total number of interrupts serviced.", true),
    (
        "procs_blocked",
        "node_procs_blocked",
        "Number of processes blocked waiting for I/O to complete.",
        false,
    ),
    ("procs_running", "node_procs_running", "Number of processes in runnable state.", false),
];

pub fn of_cores(proc: &Path, page: &mut Page) {
    let text = read(proc, "stat");
    let name = "node_cpu_seconds_total";
    page.counter(name, "Seconds the CPUs spent in each mode.");
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(core) =
            words.next().and_then(|word| word.strip_prefix("cpu")).filter(|core| !core.is_empty())
        else {
            continue;
        };
        for (mode, ticks) in MODES.iter().zip(words) {
            if let Ok(ticks) = ticks.parse() {
                page.sample(name, &[("cpu", core), ("mode", mode)], of_ticks(ticks));
            }
        }
    }
    for (key, name, help, counts) in NUMBERS {
        let value = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(key)).then(|| words.next()?.parse::<u64>().ok()).flatten()
        });
        let Some(value) = value else { continue };
        if counts {
            page.counter(name, help)
        } else {
            page.gauge(name, help)
        }
        page.sample(name, &[], value);
    }
}

pub fn of_load(proc: &Path, page: &mut Page) {
    let text = read(proc, "loadavg");
    let rows = [
        ("node_load1", "1m load average."),
        ("node_load5", "5m load average."),
        ("node_load15", "15m load average."),
    ];
    for ((name, help), load) in rows.into_iter().zip(text.split_whitespace()) {
        if let Ok(load) = load.parse::<f64>() {
            page.gauge(name, help);
            page.sample(name, &[], load);
        }
    }
}

pub fn of_pressure(proc: &Path, page: &mut Page) {
    let rows = [
        (
            "cpu",
            "some",
            "node_pressure_cpu_waiting_seconds_total",
            "Seconds in which processes waited for CPU time.",
        ),
        (
            "io",
            "some",
            "node_pressure_io_waiting_seconds_total",
            "Seconds in which processes waited for I/O.",
        ),
        (
            "io",
            "full",
            "node_pressure_io_stalled_seconds_total",
            "Seconds in which no process made progress for I/O.",
        ),
        (
            "memory",
            "some",
            "node_pressure_memory_waiting_seconds_total",
            "Seconds in which processes waited for memory.",
        ),
        (
            "memory",
            "full",
            "node_pressure_memory_stalled_seconds_total",
            "Seconds in which no process made progress for memory.",
        ),
    ];
    for (file, kind, name, help) in rows {
        let text = read(proc, &format!("pressure/{file}"));
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(kind));
        let total = line.and_then(|line| line.split("total=").nth(1)?.trim().parse::<u64>().ok());
        let Some(micros) = total else { continue };
        page.counter(name, help);
        page.sample(name, &[], format_args!("{}.{:06}", micros / 1_000_000, micros % 1_000_000));
    }
}
