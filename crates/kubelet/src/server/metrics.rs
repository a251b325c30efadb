//! Prometheus metrics of containers and pods, probes, and the kubelet itself.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::path::Path;
use std::sync::Arc;

use http::StatusCode;
use objects::core::v1::Pod;

use super::usage::{self, Usage};
use super::{Reply, Serving, machine, summary, text, typed};
use crate::lifecycle::phase::has_ended;
use crate::metrics::static_label;
use crate::pods::Workers;
use crate::probes::{BUCKETS, Tally};
use crate::shared::Shared;
use crate::static_pods::is_static;
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
const SWAP_USAGE: OfContainer = (
    "container_swap_usage_bytes",
    "gauge",
    "Current amount of the container swap usage in bytes. Reported only on non-windows systems",
    |usage| usage.swap.map(|swap| swap.value.usage.to_string()),
);
const SWAP_LIMIT: OfContainer = (
    "container_swap_limit_bytes",
    "gauge",
    "Current amount of the container swap limit in bytes. Reported only on non-windows systems",
    |usage| usage.swap.map(|swap| swap.value.available.saturating_add(swap.value.usage).to_string()),
);
const WORKING_SET: OfContainer = (
    "container_memory_working_set_bytes",
    "gauge",
    "Current working set of the container in bytes",
    |usage| usage.memory.map(|memory| memory.value.working_set.to_string()),
);
fn of_containers(page: &mut Page, all: &[Usage], (name, kind, help, value): OfContainer) {
    page.metric(name, kind, help);
    for usage in all {
        let Some(value) = value(usage) else { continue };
        let labels = [
            ("container", usage.container.as_str()),
            ("namespace", usage.namespace.as_str()),
            ("pod", usage.pod.as_str()),
        ];
        let at = match name {
            name if name.starts_with("container_memory_") => usage.memory.map(|one| one.at),
            name if name.starts_with("container_swap_") => usage.swap.map(|one| one.at),
            _ => usage.cpu.map(|one| one.at),
        };
        match at.filter(|at| *at > 0) {
            Some(at) => page.timed(name, &labels, value, at),
            None => page.row(name, &labels, value),
        }
    }
}

/// `/metrics/resource`, scraped by metrics-server.
pub async fn of_resources(shared: &Shared, workers: &Arc<Workers>) -> Reply {
    // Without the runtime, the page has the usage of the node and reports the error.
    let found = usage::of_containers(shared).await;
    let has_failed = found.as_ref().err().map(|error| {
        tracing::warn!(%error, "failed to get container metrics");
    });
    let all = found.unwrap_or_default();
    let mut page = Page::default();
    for metric in [CPU, WORKING_SET, SWAP_LIMIT, SWAP_USAGE] {
        of_containers(&mut page, &all, metric);
    }
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
    let swapped: Vec<_> = usage::by_pod(&all)
        .into_values()
        .filter_map(|own| {
            let at = own.iter().find_map(|usage| usage.swap)?.at;
            Some((
                own[0],
                own.iter().filter_map(|usage| usage.swap).map(|swap| swap.value.usage).sum::<u64>(),
                at,
            ))
        })
        .collect();
    let name = "pod_swap_usage_bytes";
    let help = "Current amount of the pod swap usage in bytes. Reported only on non-windows systems";
    page.metric(name, "gauge", help);
    for (usage, swap, at) in swapped {
        let labels = [("namespace", usage.namespace.as_str()), ("pod", &usage.pod)];
        page.timed(name, &labels, swap, at);
    }
    let name = "node_swap_usage_bytes";
    page.metric(
        name,
        "gauge",
        "Current swap usage of the node in bytes. Reported only on non-windows systems",
    );
    page.timed(name, &[], machine::swap_usage(), now);
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    for name in ["resource_scrape_error", "scrape_error"] {
        page.single(name, "gauge", help, u8::from(has_failed.is_some()));
    }
    page.reply()
}

/// `/metrics/probes`.
pub fn of_probes(tally: &Tally) -> Reply {
    probes(tally).reply()
}

fn probes(tally: &Tally) -> Page {
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
    let name = "prober_probe_duration_seconds";
    page.metric(name, "histogram", "Duration in seconds for a probe response.");
    let (bucket, sum, count) = (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
    for (probe, durations) in tally.durations() {
        let labels = [
            ("container", probe.container.as_str()),
            ("namespace", &probe.namespace),
            ("pod", &probe.pod),
            ("probe_type", probe.probe_type),
        ];
        let mut up_to = 0;
        for (own, bound) in durations.buckets.iter().zip(BUCKETS) {
            up_to += own;
            page.row(&bucket, &[&labels[..], &[("le", &bound.to_string())]].concat(), up_to);
        }
        page.row(&bucket, &[&labels[..], &[("le", "+Inf")]].concat(), durations.count);
        page.row(&sum, &labels, durations.sum);
        page.row(&count, &labels, durations.count);
    }
    page
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
    counts(&mut page, &pods);
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

/// Condition of the pods that a family counts.
type Predicate = fn(&Pod) -> bool;

/// Numbers of pods by what they are and what happens to them.
fn counts(page: &mut Page, pods: &[Arc<Pod>]) {
    let number = |is: &dyn Fn(&Pod) -> bool| pods.iter().filter(|pod| is(pod)).count();
    let families: [(&str, &str, Predicate); 2] = [
        (
            "kubelet_desired_pods",
            "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
            |_| true,
        ),
        (
            "kubelet_active_pods",
            "The number of pods the kubelet considers active and which are being considered when admitting new pods. \
             static is true if the pod is not from the apiserver.",
            |pod| !has_ended(pod),
        ),
    ];
    for (name, help, is) in families {
        page.metric(name, "gauge", help);
        for wanted in [false, true] {
            let count = number(&|pod| is_static(pod) == wanted && is(pod));
            page.row(name, &[("static", static_label(wanted))], count);
        }
    }
    let help = "The number of mirror pods the kubelet will try to create (one per admitted static pod)";
    page.single("kubelet_mirror_pods", "gauge", help, number(&is_static));
    let ephemeral = |pod: &Arc<Pod>| {
        pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref()).map_or(0, Vec::len)
    };
    let help = "Current number of ephemeral containers in pods managed by this kubelet.";
    page.single(
        "kubelet_managed_ephemeral_containers",
        "gauge",
        help,
        pods.iter().map(ephemeral).sum::<usize>(),
    );
    let condition = |pod: &Pod, wanted: &str| {
        let mut all = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        all.find(|one| one.type_ == wanted).map(|one| one.reason.clone().unwrap_or_default())
    };
    let help = "Number of in-progress resizes for pods.";
    let in_progress = number(&|pod| condition(pod, "PodResizeInProgress").is_some());
    page.single("kubelet_pod_in_progress_resizes", "gauge", help, in_progress);
    let name = "kubelet_pod_pending_resizes";
    page.metric(name, "gauge", "Number of pending resizes for pods.");
    for (reason, label) in [("Deferred", "deferred"), ("Infeasible", "infeasible")] {
        let count = number(&|pod| condition(pod, "PodResizePending").as_deref() == Some(reason));
        page.row(name, &[("reason", label)], count);
    }
    let version = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2 } else { 1 };
    page.single("kubelet_cgroup_version", "gauge", "cgroup version on the hosts.", version);
    let name = "kubelet_metrics_provider";
    let help =
        "Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'";
    page.metric(name, "gauge", help);
    page.row(name, &[("provider", "cri")], 1);
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
    let record = |source: &'static str, begun| shared.metrics.pods.volume_measured(source, begun);
    let mut claims: BTreeMap<(String, String), Amounts> = BTreeMap::new();
    for pod in pods {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for volume in shared.volumes.measure(uid, &shared.drivers, now, &record).await.iter() {
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
    fn pods_are_counted_by_kind_and_state() {
        let pod = |text: &str| Arc::new(serde_json::from_str::<Pod>(text).expect("a pod"));
        let pods = [
            pod(
                r#"{"status": {"phase": "Running", "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]}}"#,
            ),
            pod(r#"{"status": {"phase": "Failed", "containerStatuses": []}}"#),
            pod(
                r#"{"metadata": {"annotations": {"kubernetes.io/config.source": "file"}}, "status": {"phase": "Running"}}"#,
            ),
        ];
        let mut page = Page::default();
        counts(&mut page, &pods);
        for row in [
            "kubelet_desired_pods{static=\"\"} 2",
            "kubelet_desired_pods{static=\"true\"} 1",
            "kubelet_active_pods{static=\"\"} 1",
            "kubelet_mirror_pods 1",
            "kubelet_pod_pending_resizes{reason=\"deferred\"} 1",
            "kubelet_pod_pending_resizes{reason=\"infeasible\"} 0",
            "kubelet_pod_in_progress_resizes 0",
        ] {
            assert!(page.0.contains(&format!("{row}\n")), "{row}: {}", page.0);
        }
    }

    #[test]
    fn durations_of_probes_are_a_histogram() {
        let tally = Tally::default();
        let probe = |good| crate::probes::Counted {
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            uid: "u".to_owned(),
            container: "c".to_owned(),
            probe_type: "Readiness",
            good,
        };
        tally.count(probe(true), std::time::Duration::from_millis(3));
        tally.count(probe(false), std::time::Duration::from_millis(300));
        tally.count(probe(false), std::time::Duration::from_secs(60));
        let text = probes(&tally).0;
        let labels = "container=\"c\",namespace=\"n\",pod=\"p\",probe_type=\"Readiness\"";
        for row in [
            format!("prober_probe_duration_seconds_bucket{{{labels},le=\"0.005\"}} 1"),
            format!("prober_probe_duration_seconds_bucket{{{labels},le=\"0.25\"}} 1"),
            format!("prober_probe_duration_seconds_bucket{{{labels},le=\"0.5\"}} 2"),
            format!("prober_probe_duration_seconds_bucket{{{labels},le=\"10\"}} 2"),
            format!("prober_probe_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("prober_probe_duration_seconds_sum{{{labels}}} 60.303"),
        ] {
            assert!(text.contains(&format!("{row}\n")), "{row}: {text}");
        }
        tally.forget("u");
        assert!(tally.durations().is_empty());
    }

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
