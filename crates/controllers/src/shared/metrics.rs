//! Metrics of single controllers, with Kubernetes' names, labels and buckets.

mod tables;

use base::metrics::{LabelLimit, Metrics, MetricsError};
use jiff::{SignedDuration, Timestamp};
use runtime::Context;

use tables::{AutoscalerMetrics, JobMetrics, MirroringMetrics, OtherMetrics, SliceMetrics};

pub(crate) use tables::{NodeMetrics, VolumeMetrics};

/// Namespaces, and managers of jobs, that have series of their own.
const NAMES: usize = 1000;

/// Metrics of all controllers of a process; a setting of the process.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    pub(crate) jobs: JobMetrics,
    pub(crate) autoscalers: AutoscalerMetrics,
    pub(crate) slices: SliceMetrics,
    pub(crate) mirroring: MirroringMetrics,
    pub(crate) volumes: VolumeMetrics,
    pub(crate) nodes: NodeMetrics,
    pub(crate) others: OtherMetrics,
    /// Limit of the namespaces and managers of jobs.
    pub(crate) names: LabelLimit,
}

impl ControllerMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            jobs: JobMetrics::new(metrics)?,
            autoscalers: AutoscalerMetrics::new(metrics)?,
            slices: SliceMetrics::new(metrics)?,
            mirroring: MirroringMetrics::new(metrics)?,
            volumes: VolumeMetrics::new(metrics)?,
            nodes: NodeMetrics::new(metrics)?,
            others: OtherMetrics::new(metrics)?,
            names: LabelLimit::new(NAMES),
        })
    }
}

/// Metrics of the process, unless it has none.
pub(crate) fn of(ctx: &Context) -> Option<&ControllerMetrics> {
    ctx.setting()
}

fn seconds(delay: SignedDuration) -> f64 {
    delay.as_secs_f64().max(0.0)
}

/// Records the deletion of a pod that should have left `late` ago.
pub fn taint_eviction(ctx: &Context, late: SignedDuration) {
    if let Some(metrics) = of(ctx) {
        metrics.others.taint_evictions.inc();
        metrics.others.taint_eviction_delay.observe(seconds(late));
    }
}

/// Records the deletion of a pod whose device became unusable `late` ago.
pub fn device_taint_eviction(ctx: &Context, late: SignedDuration) {
    if let Some(metrics) = of(ctx) {
        metrics.others.device_evictions.inc();
        metrics.others.device_eviction_delay.observe(seconds(late));
    }
}

/// Records the deletion of a job that expired `late` ago.
pub fn ttl_deletion(ctx: &Context, late: SignedDuration) {
    if let Some(metrics) = of(ctx) {
        metrics.others.ttl_deletion_delay.observe(seconds(late));
    }
}

/// Records the creation of a job that was due.
pub fn cron_job_created(ctx: &Context, due: Timestamp) {
    if let Some(metrics) = of(ctx) {
        metrics.others.cron_job_skew.observe(seconds(ctx.clock.now().duration_since(due)));
    }
}

/// Records a node whose pods begin to be evicted.
pub fn node_eviction(ctx: &Context, zone: &str) {
    if let Some(metrics) = of(ctx) {
        metrics.nodes.evictions.with_label_values(&[zone]).inc();
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
        metrics.nodes.evictions.with_label_values(&["z"]).inc();
        metrics.others.cron_job_skew.observe(seconds(SignedDuration::from_secs(-3)));
        metrics.others.ttl_deletion_delay.observe(seconds(SignedDuration::from_secs(1000)));
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
