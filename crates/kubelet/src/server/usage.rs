//! Container resource usage from CRI stats, in a compact form.

use std::collections::BTreeMap;

use cri::v1::{ContainerStats, LinuxPodSandboxStats, UInt64Value};

use crate::configure::labels;
use crate::engine::EngineError;
use crate::shared::Shared;

/// A measurement with its time in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample<T> {
    pub at: i64,
    pub value: T,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    pub nano_cores: u64,
    pub nanoseconds: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub working_set: u64,
    /// Memory left below the limit, if there is one.
    pub available: Option<u64>,
    pub usage: u64,
    pub rss: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Disk {
    pub bytes: u64,
    pub inodes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Swap {
    pub available: u64,
    pub usage: u64,
}

/// Usage of one container; unmeasured values are absent.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    pub id: String,
    pub container: String,
    pub pod: String,
    pub namespace: String,
    pub uid: String,
    pub cpu: Option<Sample<Cpu>>,
    pub memory: Option<Sample<Memory>>,
    pub disk: Option<Sample<Disk>>,
    pub swap: Option<Sample<Swap>>,
}

fn value(number: Option<&UInt64Value>) -> u64 {
    number.map_or(0, |number| number.value)
}

impl From<ContainerStats> for Usage {
    fn from(stats: ContainerStats) -> Self {
        let attributes = stats.attributes.unwrap_or_default();
        let label = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
        Self {
            container: label(labels::CONTAINER_NAME),
            pod: label(labels::POD_NAME),
            namespace: label(labels::POD_NAMESPACE),
            uid: label(labels::POD_UID),
            cpu: stats.cpu.map(|cpu| Sample {
                at: cpu.timestamp,
                value: Cpu {
                    nano_cores: value(cpu.usage_nano_cores.as_ref()),
                    nanoseconds: value(cpu.usage_core_nano_seconds.as_ref()),
                },
            }),
            memory: stats.memory.map(|memory| Sample {
                at: memory.timestamp,
                value: Memory {
                    working_set: value(memory.working_set_bytes.as_ref()),
                    available: memory.available_bytes.map(|bytes| bytes.value).filter(|bytes| *bytes > 0),
                    usage: value(memory.usage_bytes.as_ref()),
                    rss: value(memory.rss_bytes.as_ref()),
                    page_faults: value(memory.page_faults.as_ref()),
                    major_page_faults: value(memory.major_page_faults.as_ref()),
                },
            }),
            disk: stats.writable_layer.map(|disk| Sample {
                at: disk.timestamp,
                value: Disk {
                    bytes: value(disk.used_bytes.as_ref()),
                    inodes: value(disk.inodes_used.as_ref()),
                },
            }),
            swap: stats.swap.map(|swap| Sample {
                at: swap.timestamp,
                value: Swap {
                    available: value(swap.swap_available_bytes.as_ref()),
                    usage: value(swap.swap_usage_bytes.as_ref()),
                },
            }),
            id: attributes.id,
        }
    }
}

/// Usage of all containers that belong to pods.
pub async fn of_containers(shared: &Shared) -> Result<Vec<Usage>, EngineError> {
    let stats = shared.engine.container_stats().await?;
    Ok(stats.into_iter().map(Usage::from).filter(|usage| !usage.uid.is_empty()).collect())
}

/// Network and process stats of pod sandboxes, by pod UID.
pub async fn of_sandboxes(shared: &Shared) -> BTreeMap<String, LinuxPodSandboxStats> {
    // Optional in CRI.
    let stats = shared.engine.sandbox_stats().await.unwrap_or_default();
    let with_uid = stats.into_iter().filter_map(|one| {
        let uid = one.attributes?.metadata?.uid;
        Some((uid, one.linux?))
    });
    with_uid.filter(|(uid, _)| !uid.is_empty()).collect()
}

/// Usage by pod UID.
#[must_use]
pub fn by_pod(all: &[Usage]) -> BTreeMap<&str, Vec<&Usage>> {
    let mut pods: BTreeMap<&str, Vec<&Usage>> = BTreeMap::new();
    for usage in all {
        pods.entry(&usage.uid).or_default().push(usage);
    }
    pods
}

/// Total usage of containers.
#[must_use]
pub fn together(own: &[&Usage]) -> (Cpu, Memory) {
    let mut sum = (Cpu::default(), Memory::default());
    for usage in own {
        let (cpu, memory) = (usage.cpu.unwrap_or_default().value, usage.memory.unwrap_or_default().value);
        sum.0.nano_cores += cpu.nano_cores;
        sum.0.nanoseconds += cpu.nanoseconds;
        sum.1.working_set += memory.working_set;
        sum.1.usage += memory.usage;
        sum.1.rss += memory.rss;
        sum.1.page_faults += memory.page_faults;
        sum.1.major_page_faults += memory.major_page_faults;
    }
    sum
}
