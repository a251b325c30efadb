//! Prometheus metrics of containers and pods, probes, and the kubelet itself.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use http::StatusCode;

use super::usage::{self, Usage};
use super::{Reply, Serving, machine, summary, text, typed};
use crate::pods::Workers;
use crate::probes::Tally;
use crate::shared::Shared;
use crate::volumes::{Amounts, plugin_name, plugin_of_claim, use_of};

const CONTENT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metrics page under construction.
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

    /// A row with the time of its measurement, in nanoseconds since the epoch; metrics servers compute rates by it.
    fn timed(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display, at: i64) {
        self.row(name, labels, format_args!("{value} {}", at / 1_000_000));
    }

    /// A metric without labels.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        self.row(name, &[], value);
    }

    pub fn reply(self) -> Reply {
        typed(StatusCode::OK, CONTENT, self.0)
    }
}

fn in_seconds(nanoseconds: u64) -> String {
    format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000)
}

/// Name, type, help and value of a container metric.
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
fn of_containers(page: &mut Page, all: &[Usage], (name, kind, help, value): OfContainer) {
    page.metric(name, kind, help);
    let is_memory = name.starts_with("container_memory_");
    for usage in all {
        let Some(value) = value(usage) else { continue };
        let labels = [
            ("container", usage.container.as_str()),
            ("namespace", usage.namespace.as_str()),
            ("pod", usage.pod.as_str()),
        ];
        let at = if is_memory { usage.memory.map(|one| one.at) } else { usage.cpu.map(|one| one.at) };
        match at.filter(|at| *at > 0) {
            Some(at) => page.timed(name, &labels, value, at),
            None => page.row(name, &labels, value),
        }
    }
}

/// `/metrics/resource`, scraped by metrics-server.
pub async fn of_resources(shared: &Shared, workers: &Arc<Workers>) -> Reply {
    let all = match usage::of_containers(shared).await {
        Ok(all) => all,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let mut page = Page::default();
    of_containers(&mut page, &all, CPU);
    of_containers(&mut page, &all, WORKING_SET);
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
    let now = i64::try_from(shared.clock.now().as_nanosecond()).unwrap_or_default();
    let name = "node_cpu_usage_seconds_total";
    page.metric(name, "counter", "Cumulative cpu time consumed by the node in core-seconds");
    page.timed(name, &[], in_seconds(cpu), now);
    let name = "node_memory_working_set_bytes";
    page.metric(name, "gauge", "Current working set of the node in bytes");
    page.timed(name, &[], memory, now);
    let sums: Vec<_> = usage::by_pod(&all).into_values().map(|own| (own[0], usage::together(&own))).collect();
    let name = "pod_cpu_usage_seconds_total";
    page.metric(name, "counter", "Cumulative cpu time consumed by the pod in core-seconds");
    for (usage, (cpu, _)) in &sums {
        let labels = [("namespace", usage.namespace.as_str()), ("pod", &usage.pod)];
        page.timed(name, &labels, in_seconds(cpu.nanoseconds), usage.cpu.map_or(now, |cpu| cpu.at));
    }
    let name = "pod_memory_working_set_bytes";
    page.metric(name, "gauge", "Current working set of the pod in bytes");
    for (usage, (_, memory)) in &sums {
        let labels = [("namespace", usage.namespace.as_str()), ("pod", &usage.pod)];
        page.timed(name, &labels, memory.working_set, usage.memory.map_or(now, |memory| memory.at));
    }
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    page.single("resource_scrape_error", "gauge", help, 0);
    page.reply()
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
            ("probe_type", probe.probe_type),
            ("result", if probe.good { "successful" } else { "failed" }),
        ];
        page.row(name, &labels, count);
    }
    page.reply()
}

/// `/metrics`: the kubelet's own metrics.
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
    total_volumes(&mut page, shared, &pods);
    certificates(&mut page, shared);
    volumes_of(&mut page, shared, &pods).await;
    match shared.metrics.registry.encode() {
        Ok(text) => page.0.push_str(&String::from_utf8_lossy(&text)),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
    page.reply()
}

/// Volumes by plugin: those of pods, and those that are mounted.
fn total_volumes(page: &mut Page, shared: &Shared, pods: &[Arc<objects::core::v1::Pod>]) {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for pod in pods {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let prepared = shared.volumes.prepared(uid).unwrap_or_default();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let used = use_of(pod, &volume.name);
            if !used.mounted && !used.mapped {
                continue;
            }
            let ready = prepared.get(&volume.name);
            let of_claim = || ready.map_or("N/A", |ready| plugin_of_claim(&ready.measure));
            let plugin = plugin_name(volume).unwrap_or_else(of_claim);
            *counts.entry((plugin, "desired_state_of_world")).or_default() += 1;
            *counts.entry((plugin, "actual_state_of_world")).or_default() += usize::from(ready.is_some());
        }
    }
    if counts.is_empty() {
        return;
    }
    let name = "volume_manager_total_volumes";
    page.metric(name, "gauge", "Number of volumes in Volume Manager");
    for ((plugin, state), count) in counts {
        page.row(name, &[("plugin_name", plugin), ("state", state)], count);
    }
}

/// Remaining validity and renewal failures of the kubelet's certificates.
fn certificates(page: &mut Page, shared: &Shared) {
    let (config, now) = (&shared.config, shared.clock.now().as_second());
    let left = |expires: i64| expires.saturating_sub(now);
    if let Some(expires) = config.serving.as_ref().and_then(Serving::expires) {
        let help = "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in \
                    seconds until certificate expiry (negative if already expired).";
        page.single("kubelet_certificate_manager_server_ttl_seconds", "gauge", help, left(expires));
    }
    if let Some(expires) = config.certificates.client_expires() {
        let help = "Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds \
                    until certificate expiry (negative if already expired).";
        page.single("kubelet_certificate_manager_client_ttl_seconds", "gauge", help, left(expires));
    }
    let help = "Counter of certificate renewal errors.";
    let (client, server) = config.certificates.renew_errors();
    page.single("kubelet_certificate_manager_client_expiration_renew_errors", "counter", help, client);
    page.single("kubelet_server_expiration_renew_errors", "counter", help, server);
}

/// Name, help and value of a volume metric.
type OfVolume = (&'static str, &'static str, fn(&Amounts) -> u64);

const OF_VOLUMES: [OfVolume; 6] = [
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", |v| v.capacity),
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", |v| v.available),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", |v| v.used),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", |v| v.inodes),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", |v| v.inodes_free),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", |v| v.inodes_used),
];

/// Usage of the volumes of claims; a claim used by several pods is reported once.
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
    fn metric_labels_are_quoted() {
        let mut page = Page::default();
        page.single("a", "gauge", "An a.", 1);
        page.row("b", &[("x", "say \"hi\"\n"), ("y", "z")], in_seconds(1_500_000_000));
        assert_eq!(
            page.0,
            "# HELP a An a.\n# TYPE a gauge\na 1\nb{x=\"say \\\"hi\\\"\\n\",y=\"z\"} 1.500000000\n"
        );
    }

    #[test]
    fn resource_rows_have_the_time_of_their_measurement() {
        let sample = usage::Cpu { nano_cores: 0, nanoseconds: 2_000_000_000 };
        let cpu = Some(usage::Sample { at: 1_767_225_600_123_456_789, value: sample });
        let one =
            Usage { container: "c".into(), namespace: "n".into(), pod: "p".into(), cpu, ..Usage::default() };
        let mut page = Page::default();
        of_containers(&mut page, std::slice::from_ref(&one), CPU);
        assert!(page.0.ends_with("pod=\"p\"} 2.000000000 1767225600123\n"), "{}", page.0);
    }
}
