//! Traffic of pods, from `/proc/<pid>/net/dev` of one of their processes.

use std::collections::BTreeMap;

use cri::v1::NetworkInterfaceUsage;

use super::Known;
use super::groups::{FoundGroup, GroupKind};
use super::table::Sample;

/// Limit of interfaces per pod: pods may create interfaces.
const MAX_INTERFACES: usize = 16;

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Direction,
    pub sent: Direction,
}

/// Interfaces that a process sees.
pub fn of_process(pid: &str) -> Option<Vec<Interface>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    Some(text.lines().filter_map(parse).take(MAX_INTERFACES).collect())
}

pub fn of_runtime(usage: &NetworkInterfaceUsage) -> Interface {
    let value = |number: &Option<cri::v1::UInt64Value>| number.as_ref().map_or(0, |number| number.value);
    let direction =
        |bytes, errors| Direction { bytes: value(bytes), errors: value(errors), ..Direction::default() };
    Interface {
        name: usage.name.clone(),
        received: direction(&usage.rx_bytes, &usage.rx_errors),
        sent: direction(&usage.tx_bytes, &usage.tx_errors),
    }
}

/// A line of `/proc/net/dev`: eight numbers for each direction. Loopback and other ends of pods are left out.
fn parse(line: &str) -> Option<Interface> {
    let (name, rest) = line.split_once(':')?;
    let name = name.trim();
    if ["lo", "veth", "docker", "nerdctl"].iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let numbers: Vec<u64> = rest.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let direction = |from: usize| {
        let [bytes, packets, errors, dropped] = *numbers.get(from..from + 4)? else { return None };
        Some(Direction { bytes, packets, errors, dropped })
    };
    Some(Interface { name: name.to_owned(), received: direction(0)?, sent: direction(8)? })
}

/// Processes by which the traffic of pods is read.
#[derive(Default)]
pub struct Networks {
    /// By namespace and pod: the cgroup whose row has the traffic, and a process.
    pods: BTreeMap<(String, String), (String, Option<i32>)>,
}

impl Networks {
    /// Notes a cgroup. The row of a pod has its traffic, or that of its sandbox if that has a cgroup of its own.
    pub fn note(&mut self, found: &FoundGroup, known: &Known) {
        let labels = &found.labels;
        let key = (labels.namespace.clone(), labels.pod.clone());
        match found.kind {
            GroupKind::Raw => {}
            GroupKind::Pod if known.host_network.contains(&key) => {}
            GroupKind::Pod => {
                self.pods.entry(key).or_insert_with(|| (labels.id.clone(), None));
            }
            GroupKind::Container | GroupKind::Sandbox => {
                let Some(entry) = self.pods.get_mut(&key) else { return };
                let process = found.group.direct_processes().into_iter().min();
                if found.kind == GroupKind::Sandbox && process.is_some() {
                    *entry = (labels.id.clone(), process);
                } else if entry.1.is_none() {
                    entry.1 = process;
                }
            }
        }
    }

    /// Reads the counters into the rows of the pods.
    pub fn assign(self, samples: &mut [Sample]) {
        let mut rows: BTreeMap<String, Vec<Interface>> = BTreeMap::new();
        for (id, process) in self.pods.into_values() {
            let found = process.and_then(|pid| of_process(&pid.to_string()));
            rows.extend(found.map(|found| (id, found)));
        }
        for sample in samples {
            if let Some(found) = rows.remove(&sample.labels.id) {
                sample.network = found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_lines_parse() {
        let line = "  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0";
        let received = Direction { bytes: 1000, packets: 10, errors: 1, dropped: 2 };
        let sent = Direction { bytes: 2000, packets: 20, errors: 3, dropped: 4 };
        assert_eq!(parse(line), Some(Interface { name: "eth0".into(), received, sent }));
        for other in ["Inter-| Receive", "lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", "eth0: 1 2 3", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
