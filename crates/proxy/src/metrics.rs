//! Metrics of the proxy, with kube-proxy's names.
//!
//! The backends set the rules of both address families together, so each sync has a row for both.

use base::metrics::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, MetricsError,
    exponential_buckets,
};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// A histogram with a row for each address family.
#[derive(Clone, Debug)]
pub struct FamilyHistogram([Histogram; 2]);

impl FamilyHistogram {
    fn new(histograms: &HistogramVec) -> Self {
        Self(FAMILIES.map(|family| histograms.with_label_values(&[family])))
    }

    /// Observes a value of both families.
    pub fn observe(&self, seconds: f64) {
        self.0.iter().for_each(|histogram| histogram.observe(seconds));
    }
}

/// A gauge with a row for each address family.
#[derive(Clone, Debug)]
pub struct FamilyGauge([IntGauge; 2]);

impl FamilyGauge {
    fn new(gauges: &IntGaugeVec) -> Self {
        Self(FAMILIES.map(|family| gauges.with_label_values(&[family])))
    }

    /// Sets the value of both families.
    pub fn set(&self, value: i64) {
        self.0.iter().for_each(|gauge| gauge.set(value));
    }
}

/// A counter with a row for each address family.
#[derive(Clone, Debug)]
pub struct FamilyCounter([IntCounter; 2]);

impl FamilyCounter {
    fn new(counters: &IntCounterVec) -> Self {
        Self(FAMILIES.map(|family| counters.with_label_values(&[family])))
    }

    /// Counts an event of both families.
    pub fn inc(&self) {
        self.0.iter().for_each(IntCounter::inc);
    }

    /// Counts `IPv4` and `IPv6` events.
    pub fn add(&self, counts: [usize; 2]) {
        self.0.iter().zip(counts).for_each(|(counter, count)| counter.inc_by(count as u64));
    }
}

#[derive(Debug)]
pub struct ProxyMetrics {
    pub sync_seconds: FamilyHistogram,
    pub full_sync_seconds: FamilyHistogram,
    pub partial_sync_seconds: FamilyHistogram,
    pub conntrack_seconds: FamilyHistogram,
    /// By address family.
    pub network_programming: HistogramVec,
    pub last_sync: FamilyGauge,
    pub last_queued: FamilyGauge,
    pub service_changes: IntCounter,
    pub endpoint_changes: IntCounter,
    pub services_pending: IntGauge,
    pub endpoints_pending: IntGauge,
    pub failures: FamilyCounter,
    pub forgotten_flows: FamilyCounter,
    pub healthz: IntCounterVec,
    pub livez: IntCounterVec,
}

/// Quarters of a second, seconds up to a minute, then coarser steps up to five minutes.
fn network_programming_buckets() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
}

impl ProxyMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let family = &["ip_family"];
        let buckets = exponential_buckets(0.001, 2.0, 15);
        let histogram = |name: &str, help: &str| {
            metrics
                .histograms(name, help, family, &buckets)
                .map(|histograms| FamilyHistogram::new(&histograms))
        };
        let gauge = |name: &str, help: &str| {
            metrics.gauges(name, help, family).map(|gauges| FamilyGauge::new(&gauges))
        };
        let counter = |name: &str, help: &str| {
            metrics.counters(name, help, family).map(|counters| FamilyCounter::new(&counters))
        };
        Ok(Self {
            sync_seconds: histogram(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
            )?,
            full_sync_seconds: histogram(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
            )?,
            partial_sync_seconds: histogram(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
            )?,
            conntrack_seconds: histogram(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
            )?,
            network_programming: metrics.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                family,
                &network_programming_buckets(),
            )?,
            last_sync: gauge(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
            )?,
            last_queued: gauge(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
            )?,
            service_changes: metrics.counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Cumulative proxy rules Service changes",
            )?,
            endpoint_changes: metrics.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Cumulative proxy rules Endpoint changes",
            )?,
            services_pending: metrics.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Pending proxy rules Service changes",
            )?,
            endpoints_pending: metrics.gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Pending proxy rules Endpoint changes",
            )?,
            failures: counter(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "Cumulative proxy nftables sync failures",
            )?,
            forgotten_flows: counter(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Cumulative conntrack flows deleted by conntrack reconciler",
            )?,
            healthz: metrics.counters(
                "kubeproxy_proxy_healthz_total",
                "Cumulative proxy healthz HTTP status",
                &["code"],
            )?,
            livez: metrics.counters(
                "kubeproxy_proxy_livez_total",
                "Cumulative proxy livez HTTP status",
                &["code"],
            )?,
        })
    }
}
