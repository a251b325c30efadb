//! The kubelet's own metrics, with Kubernetes' names, labels and buckets.

mod devices;
mod dra;
mod pods;
mod storage;

use std::time::{Duration, Instant};

use base::clock::Clock;
use base::metrics::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, MetricsError,
};

use crate::lifecycle::MemberKind;
use objects::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

pub use devices::{DeviceMetrics, PodResourcesMetrics};
pub use dra::DraMetrics;
pub use pods::{NodeStartMetrics, PodMetrics, static_label};
pub use storage::{CsiMetrics, StorageMetrics, VolumeOperation};

/// Default buckets of Prometheus clients.
const DEFAULT: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const POD_START: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const IMAGE_PULL: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];

/// Powers of 2.5 from 5 ms.
fn runtime_buckets() -> Vec<f64> {
    std::iter::successors(Some(0.005), |last| Some(last * 2.5)).take(14).collect()
}

/// Metrics of calls to the container runtime.
#[derive(Clone, Debug)]
pub struct RuntimeMetrics {
    operations: IntCounterVec,
    errors: IntCounterVec,
    duration: HistogramVec,
    relist_duration: Histogram,
    relist_interval: Histogram,
    last_seen: IntGauge,
    sandbox_duration: HistogramVec,
    sandbox_errors: IntCounterVec,
    clock: Clock,
}

impl RuntimeMetrics {
    fn new(metrics: &Metrics, clock: &Clock) -> Result<Self, MetricsError> {
        let by = ["operation_type"];
        Ok(Self {
            operations: metrics.counters(
                "kubelet_runtime_operations_total",
                "Cumulative number of runtime operations by operation type.",
                &by,
            )?,
            errors: metrics.counters(
                "kubelet_runtime_operations_errors_total",
                "Cumulative number of runtime operation errors by operation type.",
                &by,
            )?,
            duration: metrics.histograms(
                "kubelet_runtime_operations_duration_seconds",
                "Duration in seconds of runtime operations. Broken down by operation type.",
                &by,
                &runtime_buckets(),
            )?,
            relist_duration: metrics.histogram(
                "kubelet_pleg_relist_duration_seconds",
                "Duration in seconds for relisting pods in PLEG: the state of one pod after an event of the \
                 runtime, or the states of all.",
                &DEFAULT,
            )?,
            relist_interval: metrics.histogram(
                "kubelet_pleg_relist_interval_seconds",
                "Interval in seconds between relisting all pods in PLEG.",
                &DEFAULT,
            )?,
            last_seen: metrics.gauge(
                "kubelet_pleg_last_seen_seconds",
                "Timestamp in seconds when PLEG was last seen active.",
            )?,
            sandbox_duration: metrics.histograms(
                "kubelet_run_podsandbox_duration_seconds",
                "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
                &["runtime_handler"],
                &DEFAULT,
            )?,
            sandbox_errors: metrics.counters(
                "kubelet_run_podsandbox_errors_total",
                "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
                &["runtime_handler"],
            )?,
            clock: clock.clone(),
        })
    }

    /// Records a call.
    pub async fn timed<T, E>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.operations.with_label_values(&[operation]).inc();
        let begun = Instant::now();
        let outcome = call.await;
        self.duration.with_label_values(&[operation]).observe(begun.elapsed().as_secs_f64());
        if outcome.is_err() {
            self.errors.with_label_values(&[operation]).inc();
        }
        outcome
    }

    /// Records the start of a sandbox by a handler, which runtime classes name.
    pub fn sandbox_started(&self, handler: &str, good: bool, begun: Instant) {
        self.sandbox_duration.with_label_values(&[handler]).observe(begun.elapsed().as_secs_f64());
        if !good {
            self.sandbox_errors.with_label_values(&[handler]).inc();
        }
    }

    /// Records that states were read since `begun`.
    pub fn relisted(&self, begun: Instant) {
        self.relist_duration.observe(begun.elapsed().as_secs_f64());
        self.last_seen.set(self.clock.now().as_second());
    }

    /// Time of the last read of states, in seconds since the epoch; 0 before the first.
    #[must_use]
    pub fn last_seen(&self) -> i64 {
        self.last_seen.get()
    }

    /// Records the time between two lists of all pods.
    pub fn relist_interval(&self, interval: Duration) {
        self.relist_interval.observe(interval.as_secs_f64());
    }
}

/// Metrics of the kubelet.
#[derive(Debug)]
pub struct KubeletMetrics {
    pub registry: Metrics,
    pub runtime: RuntimeMetrics,
    pod_worker: HistogramVec,
    pub pod_start: Histogram,
    pub pod_start_sli: Histogram,
    pub pod_start_total: Histogram,
    pub started_pods: IntCounter,
    pub started_pods_errors: IntCounter,
    started_containers: IntCounterVec,
    started_containers_errors: IntCounterVec,
    evictions: IntCounterVec,
    image_pull: HistogramVec,
    pub cgroup_manager: HistogramVec,
    http_requests: IntCounterVec,
    http_duration: HistogramVec,
    http_inflight: IntGaugeVec,
    terminated_containers: IntCounterVec,
    pub storage: StorageMetrics,
    pub pods: PodMetrics,
    pub node_start: NodeStartMetrics,
    pub devices: DeviceMetrics,
    pub dra: DraMetrics,
    pub pod_resources: PodResourcesMetrics,
}

impl KubeletMetrics {
    pub fn new(clock: &Clock) -> Result<Self, MetricsError> {
        let registry = Metrics::new(clock)?;
        base::version::register_build_info(&registry)?;
        client::register_metrics(&registry)?;
        let of_requests = ["method", "path", "server_type", "long_running"];
        Ok(Self {
            runtime: RuntimeMetrics::new(&registry, clock)?,
            pod_worker: registry.histograms(
                "kubelet_pod_worker_duration_seconds",
                "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
                &["operation_type"],
                &DEFAULT,
            )?,
            pod_start: registry.histogram(
                "kubelet_pod_start_duration_seconds",
                "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
                &POD_START,
            )?,
            pod_start_sli: registry.histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "Duration in seconds to start a pod, excluding time to pull images and run init containers, \
                 measured from pod creation timestamp to when all its containers are reported as started",
                &POD_START,
            )?,
            pod_start_total: registry.histogram(
                "kubelet_pod_start_total_duration_seconds",
                "Duration in seconds to start a pod since creation, including time to pull images and run init \
                 containers, measured from pod creation timestamp to when all its containers are reported as started",
                &POD_START,
            )?,
            started_pods: registry.counter("kubelet_started_pods_total", "Cumulative number of pods started")?,
            started_pods_errors: registry.counter(
                "kubelet_started_pods_errors_total",
                "Cumulative number of errors when starting pods",
            )?,
            started_containers: registry.counters(
                "kubelet_started_containers_total",
                "Cumulative number of containers started",
                &["container_type"],
            )?,
            started_containers_errors: registry.counters(
                "kubelet_started_containers_errors_total",
                "Cumulative number of errors when starting containers",
                &["container_type", "code"],
            )?,
            evictions: registry.counters(
                "kubelet_evictions",
                "Cumulative number of pod evictions by eviction signal",
                &["eviction_signal"],
            )?,
            image_pull: registry.histograms(
                "kubelet_image_pull_duration_seconds",
                "Duration in seconds to pull an image.",
                &["image_size_in_bytes"],
                &IMAGE_PULL,
            )?,
            cgroup_manager: registry.histograms(
                "kubelet_cgroup_manager_duration_seconds",
                "Duration in seconds for cgroup manager operations. Broken down by method.",
                &["operation_type"],
                &DEFAULT,
            )?,
            http_requests: registry.counters(
                "kubelet_http_requests_total",
                "Number of the http requests received since the server started",
                &of_requests,
            )?,
            http_duration: registry.histograms(
                "kubelet_http_requests_duration_seconds",
                "Duration in seconds to serve http requests",
                &of_requests,
                &DEFAULT,
            )?,
            http_inflight: registry.gauges(
                "kubelet_http_inflight_requests",
                "Number of the inflight http requests",
                &of_requests,
            )?,
            terminated_containers: registry.counters(
                "kubelet_terminated_containers_total",
                "Cumulative number of container terminations.",
                &["container_type", "exit_code", "reason"],
            )?,
            storage: StorageMetrics::new(&registry)?,
            pods: PodMetrics::new(&registry)?,
            node_start: NodeStartMetrics::new(&registry)?,
            devices: DeviceMetrics::new(&registry)?,
            dra: DraMetrics::new(&registry)?,
            pod_resources: PodResourcesMetrics::new(&registry)?,
            registry,
        })
    }

    /// Records one sync of a pod.
    pub fn pod_synced(&self, operation: &str, begun: Instant) {
        self.pod_worker.with_label_values(&[operation]).observe(begun.elapsed().as_secs_f64());
    }

    /// Records an attempt to start a container; `error` is the waiting reason of a failed one.
    pub fn container_started(&self, kind: MemberKind, error: Option<&str>) {
        let kind = match kind {
            MemberKind::Init | MemberKind::Sidecar => "init_container",
            MemberKind::Ephemeral => "ephemeral_container",
            MemberKind::App => "container",
        };
        self.started_containers.with_label_values(&[kind]).inc();
        if let Some(code) = error {
            self.started_containers_errors.with_label_values(&[kind, code]).inc();
        }
    }

    pub fn evicted(&self, signal: &str) {
        self.evictions.with_label_values(&[signal]).inc();
    }

    pub fn image_pulled(&self, size: u64, duration: Duration) {
        self.image_pull.with_label_values(&[size_bucket(size)]).observe(duration.as_secs_f64());
    }

    /// Records the containers that are terminated in a status and were not in the one before.
    pub fn terminated(&self, before: Option<&PodStatus>, now: &PodStatus) {
        type Lists = fn(&PodStatus) -> &[ContainerStatus];
        let kinds: [(&str, Lists); 3] = [
            ("init_container", |status| status.init_container_statuses.as_deref().unwrap_or_default()),
            ("container", |status| status.container_statuses.as_deref().unwrap_or_default()),
            ("ephemeral_container", |status| {
                status.ephemeral_container_statuses.as_deref().unwrap_or_default()
            }),
        ];
        fn ended(one: &ContainerStatus) -> Option<&ContainerStateTerminated> {
            one.state.as_ref()?.terminated.as_ref()
        }
        for (kind, list) in kinds {
            let old = before.map(list).unwrap_or_default();
            for one in list(now) {
                let Some(state) = ended(one) else { continue };
                if old.iter().find(|old| old.name == one.name).is_some_and(|old| ended(old).is_some()) {
                    continue;
                }
                let reason = state.reason.as_deref().unwrap_or_default();
                let labels = [kind, &*state.exit_code.to_string(), reason];
                self.terminated_containers.with_label_values(&labels).inc();
            }
        }
    }

    /// Records a request until the result is dropped.
    pub fn request(&self, method: &http::Method, path: &'static str, long_running: bool) -> RequestTimer {
        let method = match method.as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" | "CONNECT"
            | "TRACE") => known,
            _ => "other",
        };
        let labels = [method, path, "readwrite", if long_running { "true" } else { "false" }];
        self.http_requests.with_label_values(&labels).inc();
        let inflight = self.http_inflight.with_label_values(&labels);
        inflight.inc();
        RequestTimer {
            inflight,
            duration: self.http_duration.with_label_values(&labels),
            begun: Instant::now(),
        }
    }
}

/// A request in progress.
pub struct RequestTimer {
    inflight: IntGauge,
    duration: Histogram,
    begun: Instant,
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        self.inflight.dec();
        self.duration.observe(self.begun.elapsed().as_secs_f64());
    }
}

/// Label of an image's size.
fn size_bucket(bytes: u64) -> &'static str {
    const MB: u64 = 1 << 20;
    const GB: u64 = 1 << 30;
    match bytes {
        0 => "N/A",
        _ if bytes <= 10 * MB => "0-10MB",
        _ if bytes <= 100 * MB => "10MB-100MB",
        _ if bytes <= 500 * MB => "100MB-500MB",
        _ if bytes <= GB => "500MB-1GB",
        _ if bytes <= 5 * GB => "1GB-5GB",
        _ if bytes <= 10 * GB => "5GB-10GB",
        _ if bytes <= 20 * GB => "10GB-20GB",
        _ if bytes <= 30 * GB => "20GB-30GB",
        _ if bytes <= 40 * GB => "30GB-40GB",
        _ if bytes <= 60 * GB => "40GB-60GB",
        _ if bytes <= 100 * GB => "60GB-100GB",
        _ => "GT100GB",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &KubeletMetrics) -> String {
        String::from_utf8(metrics.registry.encode().expect("a page")).expect("text")
    }

    #[tokio::test]
    async fn runtime_calls_are_counted_with_their_errors() {
        let metrics = KubeletMetrics::new(&Clock::system()).expect("new names");
        let call = |outcome: Result<(), ()>| metrics.runtime.timed("start_container", async move { outcome });
        assert_eq!((call(Ok(())).await, call(Err(())).await), (Ok(()), Err(())));
        let text = text(&metrics);
        for row in [
            "kubelet_runtime_operations_total{operation_type=\"start_container\"} 2\n",
            "kubelet_runtime_operations_errors_total{operation_type=\"start_container\"} 1\n",
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"start_container\"} 2\n",
        ] {
            assert!(text.contains(row), "{row} in {text}");
        }
    }

    #[test]
    fn request_is_in_flight_until_dropped() {
        let metrics = KubeletMetrics::new(&Clock::system()).expect("new names");
        let labels = "{long_running=\"false\",method=\"other\",path=\"metrics\",server_type=\"readwrite\"}";
        let request =
            metrics.request(&http::Method::from_bytes(b"HACK").expect("a method"), "metrics", false);
        assert!(text(&metrics).contains(&format!("kubelet_http_inflight_requests{labels} 1\n")));
        drop(request);
        let text = text(&metrics);
        assert!(text.contains(&format!("kubelet_http_inflight_requests{labels} 0\n")), "{text}");
        assert!(text.contains(&format!("kubelet_http_requests_total{labels} 1\n")), "{text}");
        assert!(
            text.contains(&format!("kubelet_http_requests_duration_seconds_count{labels} 1\n")),
            "{text}"
        );
    }

    #[test]
    fn containers_are_counted_when_they_terminate() {
        let metrics = KubeletMetrics::new(&Clock::system()).expect("new names");
        let status = |state: &str| -> PodStatus {
            let one = |state: &str| {
                format!(
                    r#"[{{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {state}}}]"#
                )
            };
            let done = r#"{"terminated": {"exitCode": 0, "reason": "Completed"}}"#;
            let text =
                format!(r#"{{"initContainerStatuses": {}, "containerStatuses": {}}}"#, one(done), one(state));
            serde_json::from_str(&text).expect("a status")
        };
        let running = status(r#"{"running": {"startedAt": "2026-01-01T00:00:00Z"}}"#);
        let failed = status(r#"{"terminated": {"exitCode": 139, "reason": "Error"}}"#);
        metrics.terminated(None, &running);
        metrics.terminated(Some(&running), &failed);
        metrics.terminated(Some(&failed), &failed);
        metrics.terminated(Some(&failed), &running);
        metrics.terminated(Some(&running), &failed);
        let text = text(&metrics);
        for row in [
            "{container_type=\"init_container\",exit_code=\"0\",reason=\"Completed\"} 1\n",
            "{container_type=\"container\",exit_code=\"139\",reason=\"Error\"} 2\n",
        ] {
            assert!(text.contains(&format!("kubelet_terminated_containers_total{row}")), "{row}: {text}");
        }
    }

    #[test]
    fn image_sizes_have_labels() {
        for (bytes, label) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 << 20, "0-10MB"),
            ((10 << 20) + 1, "10MB-100MB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(size_bucket(bytes), label, "{bytes}");
        }
    }
}
