//! Network interfaces.

use std::path::Path;

use super::page::Page;
use super::read;

/// Columns of `/proc/net/dev` in their order: received, then transmitted.
const COLUMNS: [&str; 16] = [
    "receive_bytes",
    "receive_packets",
    "receive_errs",
    "receive_drop",
    "receive_fifo",
    "receive_frame",
    "receive_compressed",
    "receive_multicast",
    "transmit_bytes",
    "transmit_packets",
    "transmit_errs",
    "transmit_drop",
    "transmit_fifo",
    "transmit_colls",
    "transmit_carrier",
    "transmit_compressed",
];

/// A file of the machine's network namespace: this process may be in another one.
fn of_machine(proc: &Path, name: &str) -> String {
    let text = read(proc, &format!("1/net/{name}"));
    if text.is_empty() { read(proc, &format!("net/{name}")) } else { text }
}

/// Statistics of protocols that node-exporter shows by default.
const STATISTICS: [(&str, &[&str]); 7] = [
    ("Icmp", &["InErrors", "InMsgs", "OutMsgs"]),
    ("Ip", &["Forwarding"]),
    ("Ip6", &["InOctets", "OutOctets"]),
    ("IpExt", &["InOctets", "OutOctets"]),
    (
        "Tcp",
        &[
            "ActiveOpens",
            "CurrEstab",
            "InErrs",
            "InSegs",
            "OutRsts",
            "OutSegs",
            "PassiveOpens",
            "RetransSegs",
        ],
    ),
    (
        "TcpExt",
        &[
            "ListenDrops",
            "ListenOverflows",
            "SyncookiesFailed",
            "SyncookiesRecv",
            "SyncookiesSent",
            "TCPOFOQueue",
            "TCPRcvQDrop",
            "TCPSynRetrans",
            "TCPTimeouts",
        ],
    ),
    ("Udp", &["InDatagrams", "InErrors", "NoPorts", "OutDatagrams", "RcvbufErrors", "SndbufErrors"]),
];

/// Statistics of protocols: pairs of lines, the first with names and the second with values.
pub fn of_protocols(proc: &Path, page: &mut Page) {
    for file in ["snmp", "netstat"] {
        let text = of_machine(proc, file);
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let Some((protocol, names)) = names.split_once(':') else { continue };
            let Some((_, shown)) = STATISTICS.iter().find(|(known, _)| *known == protocol) else { continue };
            let values = values.split_once(':').map_or("", |(_, values)| values);
            for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
                if let Some(value) = value.parse::<i64>().ok().filter(|_| shown.contains(&name)) {
                    let metric = format!("node_netstat_{protocol}_{name}");
                    page.family_untyped(&metric, &format!("Statistic {protocol}{name}."));
                    page.sample(&metric, &[], value);
                }
            }
        }
    }
}

/// Operational state of interfaces.
pub fn of_states(proc: &Path, page: &mut Page) {
    let directory = proc.with_file_name("sys").join("class/net");
    let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !name.starts_with("veth"));
    names.sort();
    if names.is_empty() {
        return;
    }
    let name = "node_network_up";
    page.gauge(name, "Value is 1 if operstate is 'up', 0 otherwise.");
    for interface in &names {
        let state = read(&directory, &format!("{interface}/operstate"));
        page.sample(name, &[("device", interface)], u8::from(state.trim() == "up"));
    }
}

pub fn of_interfaces(proc: &Path, page: &mut Page) {
    let text = of_machine(proc, "dev");
    let interfaces: Vec<(&str, Vec<u64>)> = text
        .lines()
        .filter_map(|line| {
            let (name, values) = line.split_once(':')?;
            Some((name.trim(), values.split_whitespace().map_while(|word| word.parse().ok()).collect()))
        })
        // Interfaces of pods change frequently, and their traffic is in the kubelet's metrics.
        .filter(|(name, _)| !name.starts_with("veth"))
        .collect();
    for (at, column) in COLUMNS.into_iter().enumerate() {
        let name = format!("node_network_{column}_total");
        page.counter(&name, &format!("Network device statistic {column}."));
        for (interface, values) in &interfaces {
            if let Some(value) = values.get(at) {
                page.sample(&name, &[("device", interface)], value);
            }
        }
    }
}
