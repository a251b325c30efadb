//! Metrics of the loops, with the names and buckets Kubernetes gives them.

use base::metrics::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, MetricsError,
};

/// 10 ns to 10 s, each ten times the one before.
const BUCKETS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

/// The metrics of all queues of a process.
#[derive(Clone, Debug)]
pub struct LoopMetrics {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    waited: HistogramVec,
    worked: HistogramVec,
}

/// The metrics of one queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    pub(crate) depth: IntGauge,
    pub(crate) adds: IntCounter,
    pub(crate) retries: IntCounter,
    pub(crate) waited: Histogram,
    pub(crate) worked: Histogram,
}

impl LoopMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let name = &["name"];
        Ok(Self {
            depth: metrics.gauges("workqueue_depth", "Current depth of workqueue", name)?,
            adds: metrics.counters(
                "workqueue_adds_total",
                "Total number of adds handled by workqueue",
                name,
            )?,
            retries: metrics.counters(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue",
                name,
            )?,
            waited: metrics.histograms(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
                name,
                &BUCKETS,
            )?,
            worked: metrics.histograms(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
                name,
                &BUCKETS,
            )?,
        })
    }

    /// Those of the queue called `name`.
    #[must_use]
    pub fn queue(&self, name: &str) -> QueueMetrics {
        QueueMetrics {
            depth: self.depth.with_label_values(&[name]),
            adds: self.adds.with_label_values(&[name]),
            retries: self.retries.with_label_values(&[name]),
            waited: self.waited.with_label_values(&[name]),
            worked: self.worked.with_label_values(&[name]),
        }
    }
}
