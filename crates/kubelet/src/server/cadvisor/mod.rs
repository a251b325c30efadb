//! `/metrics/cadvisor`: usage and limits of cgroups, with cAdvisor's names and labels.
//!
//! Values are read from cgroup files, so they do not depend on the runtime. Containers without a cgroup on this machine,
//! such as those in virtual machines, have the values that the runtime reports.

mod descriptors;
mod devices;
mod groups;
mod machine;
mod network;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cri::v1::{Container, ContainerStats, PodSandbox, PodSandboxStats};
use http::StatusCode;
use sys::cgroups::{CpuStats, Hierarchy, MemoryStats, Stats};

use super::metrics::Page;
use super::usage::Usage;
use super::{Reply, text};
use crate::configure::labels;
use crate::pods::Workers;
use crate::shared::Shared;
use groups::{FoundGroup, GroupKind};
use table::Sample;

/// Labels of every row, as cAdvisor has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    pub container: String,
    /// Path of the cgroup.
    pub id: String,
    pub image: String,
    /// ID of the container or the sandbox.
    pub name: String,
    pub namespace: String,
    pub pod: String,
}

/// Objects of the runtime and pods of this node, which give cgroups their labels.
#[derive(Default)]
pub struct Known {
    pub containers: BTreeMap<String, Labels>,
    pub sandboxes: BTreeMap<String, Labels>,
    /// Pods by UID.
    pub pods: BTreeMap<String, Labels>,
    /// Namespaces and names of pods in the node's network, whose traffic is the machine's.
    pub host_network: BTreeSet<(String, String)>,
}

fn label(labels: &BTreeMap<String, String>, name: &str) -> String {
    labels.get(name).cloned().unwrap_or_default()
}

impl Known {
    fn new(containers: &[Container], sandboxes: &[PodSandbox]) -> Self {
        let mut known = Self::default();
        for one in containers {
            let image = one.image.clone().unwrap_or_default();
            let named = !image.user_specified_image.is_empty();
            let labels = Labels {
                container: label(&one.labels, labels::CONTAINER_NAME),
                image: if named { image.user_specified_image } else { image.image },
                name: one.id.clone(),
                namespace: label(&one.labels, labels::POD_NAMESPACE),
                pod: label(&one.labels, labels::POD_NAME),
                ..Labels::default()
            };
            known.containers.insert(one.id.clone(), labels);
        }
        for one in sandboxes {
            let (uid, namespace, pod) = match &one.metadata {
                Some(meta) => (meta.uid.clone(), meta.namespace.clone(), meta.name.clone()),
                None => continue,
            };
            let labels = Labels { namespace, pod, ..Labels::default() };
            known.pods.insert(uid, labels.clone());
            known.sandboxes.insert(one.id.clone(), Labels { name: one.id.clone(), ..labels });
        }
        known
    }

    fn add_pods(&mut self, workers: &Arc<Workers>) {
        for pod in workers.pods() {
            let meta = &pod.metadata;
            let labels = Labels {
                namespace: meta.namespace.clone().unwrap_or_default(),
                pod: meta.name.clone().unwrap_or_default(),
                ..Labels::default()
            };
            if pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true) {
                self.host_network.insert((labels.namespace.clone(), labels.pod.clone()));
            }
            self.pods.insert(meta.uid.clone().unwrap_or_default(), labels);
        }
    }
}

/// Serves the page.
pub async fn page(shared: &Shared, workers: &Arc<Workers>, hierarchy: Option<Hierarchy>) -> Reply {
    let listed = tokio::try_join!(
        shared.engine.running_containers(),
        shared.engine.ready_sandboxes(),
        shared.engine.container_stats(),
    );
    // Without the runtime, cgroups of the machine and of pods have rows, and the page reports the error.
    let has_failed = listed.is_err();
    if let Err(error) = &listed {
        tracing::warn!(%error, "failed to get containers from the runtime");
    }
    let (containers, sandboxes, stats) = listed.unwrap_or_default();
    let mut known = Known::new(&containers, &sandboxes);
    known.add_pods(workers);
    let root = shared.config.cgroup_root.clone();
    let runtime_version = shared.engine.version().to_owned();
    let now = shared.clock.now();
    let reading = tokio::task::spawn_blocking(move || {
        let samples = read(&known, &stats, hierarchy.as_ref(), &root);
        (known, samples)
    });
    let Ok((known, mut samples)) = reading.await else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "failed to read cgroups\n");
    };
    if lacks_network(&known, &samples) {
        // Optional in CRI.
        add_network(&mut samples, &shared.engine.sandbox_stats().await.unwrap_or_default());
    }
    let mut page = Page::default();
    table::write(&mut page, &samples, now, has_failed);
    machine::write(&mut page, &runtime_version);
    page.reply()
}

/// Reads all cgroups of interest.
fn read(known: &Known, stats: &[ContainerStats], hierarchy: Option<&Hierarchy>, root: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    let disks = devices::mounted();
    let mut seen = BTreeSet::new();
    if let Some(hierarchy) = hierarchy {
        samples.push(of_machine(hierarchy, &disks));
        let own = groups::own().filter(|own| own != "/" && !own.starts_with(&format!("{root}/")));
        let own = own.and_then(|own| hierarchy.group(&own));
        let own = own.map(|group| FoundGroup { labels: groups::raw(&group), group, kind: GroupKind::Raw });
        let found = groups::below(hierarchy, root, known).into_iter().chain(own);
        let mut networks = network::Networks::default();
        for found in found {
            networks.note(&found, known);
            if let GroupKind::Container = found.kind {
                seen.insert(found.labels.name.clone());
            }
            samples.push(of_group(found));
        }
        networks.assign(&mut samples);
    }
    for one in stats {
        let disk = one.writable_layer.clone().unwrap_or_default();
        let usage = Usage::from(one.clone());
        let Some(labels) = known.containers.get(&usage.id) else { continue };
        if !seen.contains(&usage.id) {
            samples.push(of_runtime(&usage, labels));
        }
        let mount = disk.fs_id.map(|id| id.mountpoint).unwrap_or_default();
        if let (Some(used), Some(sample)) =
            (usage.disk, samples.iter_mut().find(|sample| sample.labels.name == usage.id))
        {
            sample.disks = vec![devices::used(&disks, &mount, used.value.bytes)];
        }
    }
    samples
}

fn of_group(found: FoundGroup) -> Sample {
    let group = &found.group;
    let processes = match found.kind {
        // Processes of these are those of the cgroups below.
        GroupKind::Raw | GroupKind::Pod => None,
        GroupKind::Container | GroupKind::Sandbox => group.processes().ok(),
    };
    Sample {
        stats: group.stats(),
        spec: group.spec(),
        oom_kills: Some(group.out_of_memory_kills()),
        descriptors: processes.as_deref().and_then(descriptors::count),
        processes: processes.map(|found| found.len() as u64),
        devices: devices::named(group.devices()),
        from_cgroup: true,
        labels: found.labels,
        ..Sample::default()
    }
}

/// The root cgroup, whose CPU and memory usage is that of the machine.
fn of_machine(hierarchy: &Hierarchy, disks: &[devices::MountedDisk]) -> Sample {
    let group = hierarchy.root();
    let memory = super::machine::memory();
    let mut stats = group.stats();
    stats.cpu.usage_nanoseconds = super::machine::processor_time();
    stats.memory.usage = memory.usage;
    stats.memory.working_set = memory.working_set;
    stats.memory.rss = memory.rss;
    stats.memory.page_faults = memory.page_faults;
    stats.memory.major_page_faults = memory.major_page_faults;
    Sample {
        stats,
        spec: group.spec(),
        devices: devices::named(group.devices()),
        disks: disks.iter().map(devices::MountedDisk::whole).collect(),
        network: network::of_process("self").unwrap_or_default(),
        labels: Labels { id: group.id(), ..Labels::default() },
        from_cgroup: true,
        ..Sample::default()
    }
}

/// A container without a cgroup on this machine.
fn of_runtime(usage: &Usage, labels: &Labels) -> Sample {
    let (cpu, memory) = (usage.cpu.unwrap_or_default().value, usage.memory.unwrap_or_default().value);
    let stats = Stats {
        cpu: CpuStats { usage_nanoseconds: cpu.nanoseconds, ..CpuStats::default() },
        memory: MemoryStats {
            usage: memory.usage,
            working_set: memory.working_set,
            rss: memory.rss,
            page_faults: memory.page_faults,
            major_page_faults: memory.major_page_faults,
            swap_usage: usage.swap.map_or(0, |swap| swap.value.usage),
            ..MemoryStats::default()
        },
        ..Stats::default()
    };
    Sample { stats, labels: Labels { id: usage.id.clone(), ..labels.clone() }, ..Sample::default() }
}

/// Reports whether a pod with its own network has no traffic counters yet.
fn lacks_network(known: &Known, samples: &[Sample]) -> bool {
    let measured: BTreeSet<(&str, &str)> = samples
        .iter()
        .filter(|one| !one.network.is_empty())
        .map(|one| (one.labels.namespace.as_str(), one.labels.pod.as_str()))
        .collect();
    let own = known
        .sandboxes
        .values()
        .filter(|labels| !known.host_network.contains(&(labels.namespace.clone(), labels.pod.clone())));
    own.into_iter().any(|labels| !measured.contains(&(labels.namespace.as_str(), labels.pod.as_str())))
}

/// Adds the traffic that the runtime reports to pods without counters.
fn add_network(samples: &mut Vec<Sample>, stats: &[PodSandboxStats]) {
    for one in stats {
        let Some(attributes) = &one.attributes else { continue };
        let Some(meta) = &attributes.metadata else { continue };
        let reported = one.linux.as_ref().and_then(|linux| linux.network.as_ref());
        let Some(interface) = reported.and_then(|network| network.default_interface.as_ref()) else {
            continue;
        };
        let same = |one: &Sample| one.labels.pod == meta.name && one.labels.namespace == meta.namespace;
        if samples.iter().any(|one| same(one) && !one.network.is_empty()) {
            continue;
        }
        let labels = Labels {
            id: attributes.id.clone(),
            name: attributes.id.clone(),
            namespace: meta.namespace.clone(),
            pod: meta.name.clone(),
            ..Labels::default()
        };
        samples.push(Sample {
            labels,
            network: vec![network::of_runtime(interface)],
            network_only: true,
            ..Sample::default()
        });
    }
}

#[cfg(test)]
mod tests;
