//! Figures of the proxy, under the names that Kubernetes' has.

use base::metrics::{Histogram, IntCounter, IntCounterVec, IntGauge, Metrics, MetricsError};

#[derive(Debug)]
pub struct ProxyMetrics {
    pub sync_seconds: Histogram,
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

impl ProxyMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            sync_seconds: metrics.histogram(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "How long it took to set rules.",
                &BUCKETS,
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
