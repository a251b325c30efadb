//! Metrics as Prometheus reads them: of containers and pods, of probes, of the kubelet itself.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use http::StatusCode;

use super::runtime_metrics::{self, Owner};
use super::usage::{self, Usage};
use super::{Reply, machine, summary, text, typed};
use crate::node;
use crate::pods::Workers;
use crate::probes::Tally;
use crate::shared::Shared;
use crate::volumes::Amounts;

const CONTENT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics being written.
#[derive(Default)]
pub struct Page(String);

impl Page {
    #[cfg(test)]
    pub fn text(&self) -> &str {
        &self.0
    }

    pub fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn row(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// A metric without labels.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        self.row(name, &[], value);
    }

    fn reply(self) -> Reply {
        typed(StatusCode::OK, CONTENT, self.0)
    }
}

fn in_seconds(nanoseconds: u64) -> String {
    format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000)
}

/// Name, kind, help, and how to tell it of a container.
type OfContainer = (&'static str, &'static str, &'static str, fn(&Usage) -> Option<String>);

const CPU: OfContainer = (
    "container_cpu_usage_seconds_total",
    "counter",
    "Cumulative cpu time consumed by the container in core-seconds",
    |usage| usage.cpu.map(|cpu| in_seconds(cpu.value.nanoseconds)),
);
const WORKING_SET: OfContainer = (
    "container_memory_working_set_bytes",
    "gauge",
    "Current working set of the container in bytes",
    |usage| usage.memory.map(|memory| memory.value.working_set.to_string()),
);
/// What cAdvisor made known beyond those.
const MORE: [OfContainer; 4] = [
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory.",
        |usage| usage.memory.map(|memory| memory.value.usage.to_string()),
    ),
    ("container_memory_rss", "gauge", "Size of RSS in bytes.", |usage| {
        usage.memory.map(|memory| memory.value.rss.to_string())
    }),
    ("container_fs_usage_bytes", "gauge", "Number of bytes that are consumed by the container.", |usage| {
        usage.disk.map(|disk| disk.value.bytes.to_string())
    }),
    ("container_fs_inodes_total", "gauge", "Number of inodes that the container uses.", |usage| {
        usage.disk.map(|disk| disk.value.inodes.to_string())
    }),
];

fn of_containers(page: &mut Page, all: &[Usage], (name, kind, help, value): OfContainer, detailed: bool) {
    page.metric(name, kind, help);
    for usage in all {
        let Some(value) = value(usage) else { continue };
        let mut labels = vec![("container", usage.container.as_str())];
        if detailed {
            labels.extend([("id", usage.id.as_str()), ("name", usage.id.as_str())]);
        }
        labels.extend([("namespace", usage.namespace.as_str()), ("pod", usage.pod.as_str())]);
        page.row(name, &labels, value);
    }
}

/// `/metrics/resource`: what metrics servers read.
pub async fn of_resources(shared: &Shared, workers: &Arc<Workers>) -> Reply {
    let all = match usage::of_containers(shared).await {
        Ok(all) => all,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let mut page = Page::default();
    of_containers(&mut page, &all, CPU, false);
    of_containers(&mut page, &all, WORKING_SET, false);
    let pods = workers.pods();
    let name = "container_start_time_seconds";
    page.metric(name, "gauge", "Start time of the container since unix epoch in seconds");
    for usage in &all {
        let pod = pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(&usage.uid));
        if let Some(begun) = pod.and_then(|pod| summary::started(pod, &usage.container)) {
            let labels = [
                ("container", usage.container.as_str()),
                ("namespace", &usage.namespace),
                ("pod", &usage.pod),
            ];
            page.row(name, &labels, begun.as_second());
        }
    }
    let (cpu, memory) = (machine::processor_time(), machine::memory().working_set);
    let node = "Cumulative cpu time consumed by the node in core-seconds";
    page.single("node_cpu_usage_seconds_total", "counter", node, in_seconds(cpu));
    let node = "Current working set of the node in bytes";
    page.single("node_memory_working_set_bytes", "gauge", node, memory);
    let sums: Vec<_> = usage::by_pod(&all).into_values().map(|own| (own[0], usage::together(&own))).collect();
    let name = "pod_cpu_usage_seconds_total";
    page.metric(name, "counter", "Cumulative cpu time consumed by the pod in core-seconds");
    for (usage, (cpu, _)) in &sums {
        let labels = [("namespace", usage.namespace.as_str()), ("pod", &usage.pod)];
        page.row(name, &labels, in_seconds(cpu.nanoseconds));
    }
    let name = "pod_memory_working_set_bytes";
    page.metric(name, "gauge", "Current working set of the pod in bytes");
    for (usage, (_, memory)) in &sums {
        let labels = [("namespace", usage.namespace.as_str()), ("pod", &usage.pod)];
        page.row(name, &labels, memory.working_set);
    }
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    page.single("resource_scrape_error", "gauge", help, 0);
    page.reply()
}

/// `/metrics/cadvisor`.
pub async fn of_cadvisor(shared: &Shared) -> Reply {
    let all = match usage::of_containers(shared).await {
        Ok(all) => all,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let mut page = Page::default();
    for metric in [CPU, WORKING_SET].into_iter().chain(MORE) {
        of_containers(&mut page, &all, metric, true);
    }
    page_faults(&mut page, &all);
    let sandboxes = shared.engine.sandbox_stats().await.unwrap_or_default();
    of_networks(&mut page, &sandboxes);
    if let Ok((descriptors, metrics)) = shared.engine.metrics().await {
        let written = [CPU, WORKING_SET].into_iter().chain(MORE).map(|row| row.0);
        let written = written.chain(NETWORK.map(|row| row.0)).chain([FAULTS]).collect();
        runtime_metrics::write(&mut page, &descriptors, &metrics, &owners(&all, &sandboxes), &written);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    page.single("machine_cpu_cores", "gauge", "Number of logical CPU cores.", cores);
    let memory = node::memory_capacity();
    page.single("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.", memory);
    page.reply()
}

const FAULTS: &str = "container_memory_failures_total";

/// Pages that were not where they were looked for.
fn page_faults(page: &mut Page, all: &[Usage]) {
    page.metric(FAULTS, "counter", "Cumulative count of memory allocation failures.");
    for (usage, memory) in all.iter().filter_map(|usage| Some((usage, usage.memory?.value))) {
        for (kind, count) in [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)] {
            let labels = [
                ("container", usage.container.as_str()),
                ("failure_type", kind),
                ("id", &usage.id),
                ("name", &usage.id),
                ("namespace", &usage.namespace),
                ("pod", &usage.pod),
                ("scope", "container"),
            ];
            page.row(FAULTS, &labels, count);
        }
    }
}

/// To whom containers and sandboxes belong, by their ids.
fn owners(all: &[Usage], sandboxes: &[cri::v1::PodSandboxStats]) -> BTreeMap<String, Owner> {
    let of_containers = all.iter().map(|usage| {
        let owner = Owner {
            container: usage.container.clone(),
            namespace: usage.namespace.clone(),
            pod: usage.pod.clone(),
        };
        (usage.id.clone(), owner)
    });
    let of_sandboxes = sandboxes.iter().filter_map(|one| {
        let attributes = one.attributes.as_ref()?;
        let meta = attributes.metadata.as_ref()?;
        let owner = Owner { namespace: meta.namespace.clone(), pod: meta.name.clone(), ..Owner::default() };
        Some((attributes.id.clone(), owner))
    });
    of_containers.chain(of_sandboxes).collect()
}

const NETWORK: [(&str, &str, bool); 2] = [
    ("container_network_receive_bytes_total", "Cumulative count of bytes received", true),
    ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", false),
];

/// Traffic of pods that have a network of their own, where the runtime measures it.
fn of_networks(page: &mut Page, stats: &[cri::v1::PodSandboxStats]) {
    for (name, help, receive) in NETWORK {
        page.metric(name, "counter", help);
        for one in stats {
            let meta = one.attributes.as_ref().and_then(|attributes| attributes.metadata.as_ref());
            let interface = one
                .linux
                .as_ref()
                .and_then(|linux| linux.network.as_ref())
                .and_then(|network| network.default_interface.as_ref());
            let (Some(meta), Some(interface)) = (meta, interface) else { continue };
            let bytes = if receive { &interface.rx_bytes } else { &interface.tx_bytes };
            let labels =
                [("interface", interface.name.as_str()), ("namespace", &meta.namespace), ("pod", &meta.name)];
            page.row(name, &labels, bytes.as_ref().map_or(0, |bytes| bytes.value));
        }
    }
}

/// `/metrics/probes`.
pub fn of_probes(tally: &Tally) -> Reply {
    let mut page = Page::default();
    let name = "prober_probe_total";
    let help = "Cumulative number of a liveness, readiness or startup probe for a container by result.";
    page.metric(name, "counter", help);
    for (probe, count) in tally.all() {
        let labels = [
            ("container", probe.container.as_str()),
            ("namespace", &probe.namespace),
            ("pod", &probe.pod),
            ("pod_uid", &probe.uid),
            ("probe_type", probe.question),
            ("result", if probe.good { "successful" } else { "failed" }),
        ];
        page.row(name, &labels, count);
    }
    page.reply()
}

/// `/metrics`: what the kubelet counts of itself.
pub async fn of_kubelet(shared: &Shared, workers: &Arc<Workers>) -> Reply {
    let pods = workers.pods();
    let phase = |wanted: &str| {
        let is = |pod: &&Arc<objects::core::v1::Pod>| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(wanted)
        };
        pods.iter().filter(is).count()
    };
    let mut page = Page::default();
    page.single(
        "kubelet_running_pods",
        "gauge",
        "Number of pods that have a running pod sandbox",
        phase("Running"),
    );
    page.single(
        "kubelet_desired_pods",
        "gauge",
        "The number of pods the kubelet is being instructed to run.",
        pods.len(),
    );
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for container in shared.engine.all_containers().await.unwrap_or_default() {
        let state = match container.state() {
            cri::v1::ContainerState::ContainerCreated => "created",
            cri::v1::ContainerState::ContainerRunning => "running",
            cri::v1::ContainerState::ContainerExited => "exited",
            cri::v1::ContainerState::ContainerUnknown => "unknown",
        };
        *states.entry(state).or_default() += 1;
    }
    let name = "kubelet_running_containers";
    page.metric(name, "gauge", "Number of containers currently running");
    for (state, count) in states {
        page.row(name, &[("container_state", state)], count);
    }
    page.metric("kubelet_node_name", "gauge", "The node's name. The count is always 1.");
    page.row("kubelet_node_name", &[("node", &shared.config.node_name)], 1);
    page.metric("kubernetes_build_info", "gauge", "The version of Kubernetes that this kubelet behaves as.");
    page.row("kubernetes_build_info", &[("git_version", crate::KUBERNETES_VERSION)], 1);
    volumes_of(&mut page, shared, &pods).await;
    let own = machine::own();
    page.single(
        "process_cpu_seconds_total",
        "counter",
        "Total user and system CPU time spent in seconds.",
        in_seconds(own.cpu.nanoseconds),
    );
    let help = "Resident memory size in bytes.";
    page.single("process_resident_memory_bytes", "gauge", help, own.memory.rss);
    page.reply()
}

/// Name, help, and what of a volume it tells.
type OfVolume = (&'static str, &'static str, fn(&Amounts) -> u64);

const OF_VOLUMES: [OfVolume; 6] = [
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", |v| v.capacity),
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", |v| v.available),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", |v| v.used),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", |v| v.inodes),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", |v| v.inodes_free),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", |v| v.inodes_used),
];

/// How full the volumes of claims are; one that several pods have is told once.
async fn volumes_of(page: &mut Page, shared: &Shared, pods: &[Arc<objects::core::v1::Pod>]) {
    let now = shared.clock.now();
    let mut claims: BTreeMap<(String, String), Amounts> = BTreeMap::new();
    for pod in pods {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for volume in shared.volumes.measure(uid, &shared.drivers, now).await.iter() {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            if let Some(claim) = &volume.claim {
                claims.entry((namespace, claim.clone())).or_insert(volume.amounts);
            }
        }
    }
    if claims.is_empty() {
        return;
    }
    for (name, help, value) in OF_VOLUMES {
        page.metric(name, "gauge", help);
        for ((namespace, claim), amounts) in &claims {
            let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim)];
            page.row(name, &labels, value(amounts));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_quoted() {
        let mut page = Page::default();
        page.single("a", "gauge", "An a.", 1);
        page.row("b", &[("x", "say \"hi\"\n"), ("y", "z")], in_seconds(1_500_000_000));
        assert_eq!(
            page.0,
            "# HELP a An a.\n# TYPE a gauge\na 1\nb{x=\"say \\\"hi\\\"\\n\",y=\"z\"} 1.500000000\n"
        );
    }
}
