//! Metrics of single controllers, with Kubernetes' names, labels and buckets.

use base::metrics::{Histogram, IntCounter, IntCounterVec, Metrics, MetricsError};
use jiff::{SignedDuration, Timestamp};
use runtime::Context;

/// Metrics of all controllers of a process; a setting of the process.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    taint_evictions: IntCounter,
    taint_eviction_delay: Histogram,
    ttl_deletion_delay: Histogram,
    cron_job_skew: Histogram,
    node_evictions: IntCounterVec,
}

/// `count` bounds, each twice the one before.
fn doubled(first: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(first), |last| Some(last * 2.0)).take(count).collect()
}

impl ControllerMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            taint_evictions: metrics.counter(
                "taint_eviction_controller_pod_deletions_total",
                "Total number of Pods deleted by TaintEvictionController since its start.",
            )?,
            taint_eviction_delay: metrics.histogram(
                "taint_eviction_controller_pod_deletion_duration_seconds",
                "Latency, in seconds, between the time when a taint effect has been activated for the Pod and its \
                 deletion via TaintEvictionController.",
                &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0],
            )?,
            ttl_deletion_delay: metrics.histogram(
                "ttl_after_finished_controller_job_deletion_duration_seconds",
                "The time it took to delete the job since it became eligible for deletion",
                &doubled(0.1, 14),
            )?,
            cron_job_skew: metrics.histogram(
                "cronjob_controller_job_creation_skew_duration_seconds",
                "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
                &doubled(1.0, 10),
            )?,
            node_evictions: metrics.counters(
                "node_collector_evictions_total",
                "Number of Node evictions that happened since current instance of NodeController started.",
                &["zone"],
            )?,
        })
    }

    fn of(ctx: &Context) -> Option<&Self> {
        ctx.setting()
    }
}

fn seconds(delay: SignedDuration) -> f64 {
    delay.as_secs_f64().max(0.0)
}

/// Records the deletion of a pod that should have left `late` ago.
pub fn taint_eviction(ctx: &Context, late: SignedDuration) {
    if let Some(metrics) = ControllerMetrics::of(ctx) {
        metrics.taint_evictions.inc();
        metrics.taint_eviction_delay.observe(seconds(late));
    }
}

/// Records the deletion of a job that expired `late` ago.
pub fn ttl_deletion(ctx: &Context, late: SignedDuration) {
    if let Some(metrics) = ControllerMetrics::of(ctx) {
        metrics.ttl_deletion_delay.observe(seconds(late));
    }
}

/// Records the creation of a job that was due.
pub fn cron_job_created(ctx: &Context, due: Timestamp) {
    if let Some(metrics) = ControllerMetrics::of(ctx) {
        metrics.cron_job_skew.observe(seconds(ctx.clock.now().duration_since(due)));
    }
}

/// Records a node whose pods begin to be evicted.
pub fn node_eviction(ctx: &Context, zone: &str) {
    if let Some(metrics) = ControllerMetrics::of(ctx) {
        metrics.node_evictions.with_label_values(&[zone]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;

    #[test]
    fn metric_names_and_buckets_match_kubernetes() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = ControllerMetrics::new(&registry).expect("registered");
        metrics.node_evictions.with_label_values(&["z"]).inc();
        metrics.cron_job_skew.observe(seconds(SignedDuration::from_secs(-3)));
        metrics.ttl_deletion_delay.observe(seconds(SignedDuration::from_secs(1000)));
        let text = String::from_utf8(registry.encode().expect("encoded")).expect("text");
        for line in [
            "taint_eviction_controller_pod_deletions_total 0",
            "cronjob_controller_job_creation_skew_duration_seconds_bucket{le=\"1\"} 1",
            "cronjob_controller_job_creation_skew_duration_seconds_bucket{le=\"512\"} 1",
            "ttl_after_finished_controller_job_deletion_duration_seconds_bucket{le=\"819.2\"} 0",
            "node_collector_evictions_total{zone=\"z\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
