//! Metrics of pods: admission, workers, resizes, images, and the start of the node.

use std::time::{Duration, Instant};

use base::metrics::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Metrics, MetricsError,
};
use jiff::Timestamp;
use objects::Quantity;
use objects::core::v1::{Container, Pod};

use super::DEFAULT;
use crate::static_pods::is_static;

const STATUS_SYNC: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
const RESIZE: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0,
    300_000.0, 600_000.0,
];
/// Reasons of rejected pods that are values of the label; others are `Other`.
const REJECTIONS: [&str; 21] = [
    "AppArmor",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "PodOSNotSupported",
    "InvalidNodeInfo",
    "InitContainerRestartPolicyForbidden",
    "SupplementalGroupsPolicyNotSupported",
    "UnexpectedAdmissionError",
    "UnknownReason",
    "UnexpectedPredicateFailureType",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    "OutOfpods",
    "PodLevelResourcesNotAdmitted",
    "PodFeatureUnsupported",
    "Evicted",
    "SysctlForbidden",
    "TopologyAffinityError",
    "NodeShutdown",
    "VolumeAttachmentLimitExceeded",
    "node(s) had taints that the pod didn't tolerate",
];

/// Metrics of pods and their workers.
#[derive(Debug)]
pub struct PodMetrics {
    rejections: IntCounterVec,
    restarted: IntCounterVec,
    containers_per_pod: Histogram,
    pub worker_start: Histogram,
    pub status_sync: Histogram,
    user_namespaces: IntCounter,
    user_namespaces_errors: IntCounter,
    requested_resizes: IntCounterVec,
    accepted_resizes: IntCounterVec,
    resize: HistogramVec,
    ensured_images: IntCounterVec,
    collected_images: IntCounterVec,
    image_volumes: [IntCounter; 3],
    stats_age: HistogramVec,
    volume_stats: HistogramVec,
}

impl PodMetrics {
    pub(super) fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            rejections: metrics.counters(
                "kubelet_admission_rejections_total",
                "Cumulative number pod admission rejections by the Kubelet.",
                &["reason"],
            )?,
            restarted: metrics.counters(
                "kubelet_restarted_pods_total",
                "Number of pods that have been restarted because they were deleted and recreated with the same UID \
                 while the kubelet was watching them (common for static pods, extremely uncommon for API pods)",
                &["static"],
            )?,
            containers_per_pod: metrics.histogram(
                "kubelet_containers_per_pod_count",
                "The number of containers per pod.",
                &[1.0, 2.0, 4.0, 8.0, 16.0],
            )?,
            worker_start: metrics.histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "Duration in seconds from kubelet seeing a pod to starting a worker.",
                &DEFAULT,
            )?,
            status_sync: metrics.histogram(
                "kubelet_pod_status_sync_duration_seconds",
                "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod \
                 status until the API is successfully updated for that pod, even if multiple intevening changes to \
                 pod status occur.",
                &STATUS_SYNC,
            )?,
            user_namespaces: metrics.counter(
                "kubelet_started_user_namespaced_pods_total",
                "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
            )?,
            user_namespaces_errors: metrics.counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "Cumulative number of errors when starting pods with user namespaces. This metric will only be \
                 collected on Linux.",
            )?,
            requested_resizes: metrics.counters(
                "kubelet_container_requested_resizes_total",
                "Number of requested resizes, counted at the container level. Different resources on the same \
                 container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the \
                 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.",
                &["resource", "requirement", "operation"],
            )?,
            accepted_resizes: metrics.counters(
                "kubelet_pod_deferred_accepted_resizes_total",
                "Cumulative number of resizes that were accepted after being deferred.",
                &["retry_trigger"],
            )?,
            resize: metrics.histograms(
                "kubelet_pod_resize_duration_milliseconds",
                "Duration in milliseconds to actuate a pod resize",
                &["success"],
                &RESIZE,
            )?,
            ensured_images: metrics.counters(
                "kubelet_image_manager_ensure_image_requests_total",
                "Number of ensure-image requests processed by the kubelet.",
                &["pull_policy", "present_locally", "pull_required"],
            )?,
            collected_images: metrics.counters(
                "kubelet_image_garbage_collected_total",
                "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
                &["reason"],
            )?,
            image_volumes: [
                metrics.counter("kubelet_image_volume_requested_total", "Number of requested image volumes.")?,
                metrics.counter(
                    "kubelet_image_volume_mounted_succeed_total",
                    "Number of successful image volume mounts.",
                )?,
                metrics.counter(
                    "kubelet_image_volume_mounted_errors_total",
                    "Number of failed image volume mounts.",
                )?,
            ],
            stats_age: metrics.histograms(
                "kubelet_eviction_stats_age_seconds",
                "Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
                &["eviction_signal"],
                &DEFAULT,
            )?,
            volume_stats: metrics.histograms(
                "kubelet_volume_metric_collection_duration_seconds",
                "Duration in seconds to calculate volume stats",
                &["metric_source"],
                &DEFAULT,
            )?,
        })
    }

    /// Records a pod that is new to this kubelet, with the reason if it was rejected.
    pub fn added(&self, pod: &Pod, rejection: Option<&str>) {
        let count = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        self.containers_per_pod.observe(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
        if let Some(reason) = rejection {
            self.rejected(reason);
        }
    }

    /// Records the rejection of a pod.
    pub fn rejected(&self, reason: &str) {
        let label = match reason {
            known if REJECTIONS.contains(&known) => known,
            other if other.starts_with("OutOf") => "OutOfExtendedResources",
            _ => "Other",
        };
        self.rejections.with_label_values(&[label]).inc();
    }

    /// Records a pod that was created again, with the same UID, before its containers had ended.
    pub fn recreated(&self, pod: &Pod) {
        self.restarted.with_label_values(&[static_label(is_static(pod))]).inc();
    }

    /// Records the start of a sandbox with a user namespace.
    pub fn user_namespace(&self, good: bool) {
        self.user_namespaces.inc();
        if !good {
            self.user_namespaces_errors.inc();
        }
    }

    /// Records which resources of which containers a new version of a pod changes.
    pub fn resize_requested(&self, before: &Pod, now: &Pod) {
        let containers = |pod: &Pod| -> Vec<Container> {
            let spec = pod.spec.iter();
            let all = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
            all.cloned().collect()
        };
        let old = containers(before);
        for new in containers(now) {
            let Some(old) = old.iter().find(|old| old.name == new.name) else { continue };
            for resource in ["memory", "cpu"] {
                for requirement in ["requests", "limits"] {
                    let of = |container: &Container| amount(container, resource, requirement);
                    if let Some(operation) = operation(of(old), of(&new)) {
                        let labels = [resource, requirement, operation];
                        self.requested_resizes.with_label_values(&labels).inc();
                    }
                }
            }
        }
    }

    /// Records a deferred resize that was accepted when another pod was removed.
    pub fn resize_accepted(&self) {
        self.accepted_resizes.with_label_values(&["pods_removed"]).inc();
    }

    pub fn resized(&self, good: bool, begun: Instant) {
        let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
        self.resize.with_label_values(&[if good { "true" } else { "false" }]).observe(milliseconds);
    }

    /// Records a request for an image; presence is absent if it could not be determined.
    pub fn image_ensured(&self, policy: &str, present: Option<bool>, required: Option<bool>) {
        let text = |value: Option<bool>| match value {
            Some(true) => "true",
            Some(false) => "false",
            None => "unknown",
        };
        let policy = match policy {
            "Always" => "always",
            "Never" => "never",
            _ => "ifnotpresent",
        };
        self.ensured_images.with_label_values(&[policy, text(present), text(required)]).inc();
    }

    pub fn image_collected(&self, is_stale: bool) {
        self.collected_images.with_label_values(&[if is_stale { "age" } else { "space" }]).inc();
    }

    /// Records the image volumes of a container that was created, or not for this reason.
    pub fn image_volumes(&self, count: usize, error: Option<&str>) {
        let count = u64::try_from(count).unwrap_or(0);
        let [requested, succeeded, failed] = &self.image_volumes;
        requested.inc_by(count);
        // The error code of CRI.
        let is_mount = error.is_some_and(|error| error.contains("ImageVolumeMountFailed"));
        (if is_mount { failed } else { succeeded }).inc_by(count);
    }

    pub fn evicted(&self, signal: &str, measured: Instant) {
        self.stats_age.with_label_values(&[signal]).observe(measured.elapsed().as_secs_f64());
    }

    pub fn volume_measured(&self, source: &str, begun: Instant) {
        self.volume_stats.with_label_values(&[source]).observe(begun.elapsed().as_secs_f64());
    }
}

/// The value of the label `static`.
pub fn static_label(is_static: bool) -> &'static str {
    if is_static { "true" } else { "" }
}

/// A request or limit of a container; zero if there is none.
fn amount(container: &Container, resource: &str, requirement: &str) -> i128 {
    let resources = container.resources.as_ref();
    let of = resources
        .and_then(|all| if requirement == "requests" { all.requests.as_ref() } else { all.limits.as_ref() });
    let text = of.and_then(|all| all.get(resource)).map(|Quantity(text)| text.as_str());
    let quantity = text.and_then(|text| machinery::quantity::Quantity::parse(text).ok());
    quantity.map_or(0, |quantity| i128::from(quantity.milli_value()))
}

fn operation(old: i128, new: i128) -> Option<&'static str> {
    match (old, new) {
        (old, new) if old == new => None,
        (_, 0) => Some("remove"),
        (0, _) => Some("add"),
        (old, new) => Some(if new < old { "decrease" } else { "increase" }),
    }
}

/// Durations of the start of the node, each set once.
#[derive(Debug)]
pub struct NodeStartMetrics {
    /// Before the kubelet, before registration, registration, after registration, in total.
    durations: [Gauge; 5],
    shutdown: [IntGauge; 2],
}

impl NodeStartMetrics {
    pub(super) fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let gauge = |part: &str, help: &str| {
            let name = format!("kubelet_node_startup_{part}duration_seconds");
            metrics.add(Gauge::new(name, format!("Duration in seconds of node startup {help}."))?)
        };
        Ok(Self {
            durations: [
                gauge("pre_kubelet_", "before kubelet starts")?,
                gauge("pre_registration_", "before registration")?,
                gauge("registration_", "during registration")?,
                gauge("post_registration_", "after registration")?,
                gauge("", "in total")?,
            ],
            shutdown: [
                metrics.gauge(
                    "kubelet_graceful_shutdown_start_time_seconds",
                    "Last graceful shutdown start time since unix epoch in seconds",
                )?,
                metrics.gauge(
                    "kubelet_graceful_shutdown_end_time_seconds",
                    "Last graceful shutdown end time since unix epoch in seconds",
                )?,
            ],
        })
    }

    /// Records the registration: the boot of the machine, the start of the kubelet, and begin and end of the registration.
    pub fn registered(&self, booted: Option<Timestamp>, [started, begun, ended]: [Timestamp; 3]) {
        let [before, until, during, ..] = &self.durations;
        if let Some(booted) = booted {
            before.set(seconds(booted, started));
        }
        until.set(seconds(started, begun));
        during.set(seconds(begun, ended));
    }

    /// Records the first time that the node is ready.
    pub fn ready(&self, booted: Option<Timestamp>, registered: Timestamp, now: Timestamp) {
        let [.., after, total] = &self.durations;
        after.set(seconds(registered, now));
        if let Some(booted) = booted {
            total.set(seconds(booted, now));
        }
    }

    pub fn shutdown_begins(&self, now: Timestamp) {
        let [start, end] = &self.shutdown;
        start.set(now.as_second());
        end.set(0);
    }

    pub fn shutdown_ends(&self, now: Timestamp) {
        self.shutdown[1].set(now.as_second());
    }
}

fn seconds(from: Timestamp, until: Timestamp) -> f64 {
    Duration::try_from(until.duration_since(from)).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;

    fn page(registry: &Metrics) -> String {
        String::from_utf8(registry.encode().expect("a page")).expect("text")
    }

    fn pod(memory: &str) -> Pod {
        let text = format!(
            r#"{{"metadata": {{"uid": "u"}}, "spec": {{"containers": [{{"name": "c", "resources": {{{memory}}}}}]}}}}"#
        );
        serde_json::from_str(&text).expect("a pod")
    }

    #[test]
    fn rejections_have_known_reasons_only() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = PodMetrics::new(&registry).expect("new names");
        for reason in ["OutOfcpu", "OutOfexample.com/gpu", "SomethingNew", "SomethingElse"] {
            metrics.added(&pod(""), Some(reason));
        }
        metrics.added(&pod(""), None);
        let page = page(&registry);
        for row in ["reason=\"OutOfcpu\"} 1", "reason=\"OutOfExtendedResources\"} 1", "reason=\"Other\"} 2"] {
            assert!(page.contains(&format!("kubelet_admission_rejections_total{{{row}\n")), "{row}: {page}");
        }
        assert!(page.contains("kubelet_containers_per_pod_count_count 5\n"), "{page}");
    }

    #[test]
    fn resizes_are_counted_by_resource_and_operation() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = PodMetrics::new(&registry).expect("new names");
        let versions = [
            pod(""),
            pod(r#""requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"cpu": "1"}"#),
            pod(r#""requests": {"memory": "1024Mi", "cpu": "1500m"}"#),
        ];
        metrics.resize_requested(&versions[0], &versions[1]);
        metrics.resize_requested(&versions[1], &versions[2]);
        let page = page(&registry);
        let row = |operation: &str, requirement: &str, resource: &str| {
            format!(
                "kubelet_container_requested_resizes_total{{operation=\"{operation}\",requirement=\"{requirement}\",resource=\"{resource}\"}} 1\n"
            )
        };
        for row in [
            row("add", "requests", "memory"),
            row("add", "requests", "cpu"),
            row("add", "limits", "cpu"),
            row("increase", "requests", "cpu"),
            row("remove", "limits", "cpu"),
        ] {
            assert!(page.contains(&row), "{row}: {page}");
        }
        assert!(
            !page.contains("operation=\"increase\",requirement=\"requests\",resource=\"memory\""),
            "{page}"
        );
    }

    #[test]
    fn start_of_the_node_has_its_parts() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = NodeStartMetrics::new(&registry).expect("new names");
        let at = |second| Timestamp::from_second(second).expect("a time");
        metrics.registered(Some(at(100)), [at(110), at(112), at(115)]);
        metrics.ready(Some(at(100)), at(115), at(135));
        let page = page(&registry);
        for row in [
            "pre_kubelet_duration_seconds 10",
            "pre_registration_duration_seconds 2",
            "registration_duration_seconds 3",
            "post_registration_duration_seconds 20",
            "startup_duration_seconds 35",
        ] {
            assert!(page.contains(&format!("{row}\n")), "{row}: {page}");
        }
    }
}
