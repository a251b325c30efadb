//! Metrics of watch events, with Kubernetes' names.

use crate::chain::metrics::retain_served;
use crate::registry::{Catalogue, Served};
use base::metrics::{HistogramVec, IntCounterVec, Metrics, MetricsError};
use bytes::Bytes;
use prometheus::{Histogram, IntCounter};

/// 1 KiB to 128 KiB by powers of two.
const SIZES: [f64; 8] = [1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];

const LIST_BUCKETS: [f64; 17] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];

#[derive(Clone)]
pub struct WatchMetrics {
    events: IntCounterVec,
    sizes: HistogramVec,
    lists: HistogramVec,
}

/// Metrics of one resource.
pub struct ResourceWatchMetrics {
    events: IntCounter,
    sizes: Histogram,
}

impl WatchMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let labels = &["group", "version", "resource"];
        Ok(Self {
            events: metrics.counters(
                "apiserver_watch_events_total",
                "Number of events sent in watch clients",
                labels,
            )?,
            sizes: metrics.histograms(
                "apiserver_watch_events_sizes",
                "Watch event size distribution in bytes",
                labels,
                &SIZES,
            )?,
            lists: metrics.histograms(
                "apiserver_watch_list_duration_seconds",
                "Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.",
                &["group", "version", "resource", "scope"],
                &LIST_BUCKETS,
            )?,
        })
    }

    /// Removes the series of resources that are no longer served.
    pub fn retain_served(&self, catalogue: &Catalogue) {
        retain_served(&self.events, catalogue);
        retain_served(&self.sizes, catalogue);
        retain_served(&self.lists, catalogue);
    }

    /// Durations of the initial events of watches, by scope.
    pub fn lists(&self, served: &Served, scope: &str) -> Histogram {
        let labels = [served.kind.group(), served.kind.version(), served.kind.resource(), scope];
        self.lists.with_label_values(&labels)
    }

    pub fn of(&self, served: &Served) -> ResourceWatchMetrics {
        let labels = [served.kind.group(), served.kind.version(), served.kind.resource()];
        let (events, sizes) = (self.events.with_label_values(&labels), self.sizes.with_label_values(&labels));
        ResourceWatchMetrics { events, sizes }
    }
}

impl ResourceWatchMetrics {
    pub fn sent(&self, frames: &[Bytes]) {
        self.events.inc_by(frames.len() as u64);
        frames.iter().for_each(|frame| self.sizes.observe(frame.len() as f64));
    }
}
