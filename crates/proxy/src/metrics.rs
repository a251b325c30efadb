//! Metrics of the proxy, with kube-proxy's names.

use base::metrics::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Metrics, MetricsError};

#[derive(Debug)]
pub struct ProxyMetrics {
    pub sync_seconds: Histogram,
    pub full_sync_seconds: Histogram,
    pub partial_sync_seconds: Histogram,
    /// By address family.
    pub network_programming: HistogramVec,
    pub last_sync: IntGauge,
    pub last_queued: IntGauge,
    pub service_changes: IntCounter,
    pub endpoint_changes: IntCounter,
    pub failures: IntCounter,
    pub forgotten_flows: IntCounter,
    pub healthz: IntCounterVec,
    pub livez: IntCounterVec,
}

/// From a millisecond to sixteen seconds.
const BUCKETS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// Quarters of a second, seconds up to a minute, then coarser steps up to five minutes.
fn network_programming_buckets() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
}

impl ProxyMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            sync_seconds: metrics.histogram(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "How long it took to set rules.",
                &BUCKETS,
            )?,
            full_sync_seconds: metrics.histogram(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Duration of setting all rules anew.",
                &BUCKETS,
            )?,
            partial_sync_seconds: metrics.histogram(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Duration of setting the rules that changed.",
                &BUCKETS,
            )?,
            network_programming: metrics.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "Time from the change of a service or pod to the rules that follow it.",
                &["ip_family"],
                &network_programming_buckets(),
            )?,
            last_sync: metrics
                .gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When rules were last set.")?,
            last_queued: metrics.gauge(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "When a change was last noticed.",
            )?,
            service_changes: metrics
                .counter("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of services.")?,
            endpoint_changes: metrics.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Changes of endpoint slices.",
            )?,
            failures: metrics.counter(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "How often the kernel did not take the rules.",
            )?,
            forgotten_flows: metrics.counter(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Flows to endpoints that no longer served.",
            )?,
            healthz: metrics.counters("kubeproxy_proxy_healthz_total", "Answers of /healthz.", &["code"])?,
            livez: metrics.counters("kubeproxy_proxy_livez_total", "Answers of /livez.", &["code"])?,
        })
    }
}
