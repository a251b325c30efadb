//! Metrics of the loops, with Kubernetes' names and buckets.

use std::collections::HashMap;
use std::sync::Arc;

use base::metrics::{
    Collector, Desc, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    MetricFamily, Metrics, MetricsError, Opts,
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// 10 ns to 10 s by powers of ten.
const BUCKETS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

/// Metrics of all queues of a process.
#[derive(Clone, Debug)]
pub struct LoopMetrics {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    waited: HistogramVec,
    worked: HistogramVec,
    unfinished: UnfinishedWork,
    leader: IntGaugeVec,
}

/// Metrics of one queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    pub(crate) depth: IntGauge,
    pub(crate) adds: IntCounter,
    pub(crate) retries: IntCounter,
    pub(crate) waited: Histogram,
    pub(crate) worked: Histogram,
    pub(crate) running: Running,
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
            unfinished: metrics.add(UnfinishedWork::new()?)?,
            leader: metrics.gauges(
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
                name,
            )?,
        })
    }

    /// Status of the lease `name`: 1 while this process holds it.
    #[must_use]
    pub fn leader(&self, name: &str) -> IntGauge {
        self.leader.with_label_values(&[name])
    }

    /// Metrics of the queue `name`.
    #[must_use]
    pub fn queue(&self, name: &str) -> QueueMetrics {
        QueueMetrics {
            depth: self.depth.with_label_values(&[name]),
            adds: self.adds.with_label_values(&[name]),
            retries: self.retries.with_label_values(&[name]),
            waited: self.waited.with_label_values(&[name]),
            worked: self.worked.with_label_values(&[name]),
            running: self.unfinished.queue(name),
        }
    }
}

/// Start times of the keys that a queue's workers process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Mutex<Vec<Instant>>>);

impl Running {
    pub(crate) fn begin(&self, at: Instant) {
        self.0.lock().push(at);
    }

    pub(crate) fn end(&self, at: Instant) {
        let mut running = self.0.lock();
        if let Some(index) = running.iter().position(|one| *one == at) {
            running.swap_remove(index);
        }
    }
}

/// Times of work in progress, computed when scraped.
#[derive(Clone, Debug)]
struct UnfinishedWork {
    unfinished: GaugeVec,
    longest: GaugeVec,
    queues: Arc<Mutex<HashMap<String, Running>>>,
}

impl UnfinishedWork {
    fn new() -> Result<Self, MetricsError> {
        let gauges = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["name"]);
        Ok(Self {
            unfinished: gauges(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
            )?,
            longest: gauges(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running.",
            )?,
            queues: Arc::default(),
        })
    }

    /// A new queue of this name; it replaces an earlier one, whose workers have ended.
    fn queue(&self, name: &str) -> Running {
        let running = Running::default();
        self.queues.lock().insert(name.to_owned(), running.clone());
        running
    }
}

impl Collector for UnfinishedWork {
    fn desc(&self) -> Vec<&Desc> {
        [self.unfinished.desc(), self.longest.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        for (name, running) in self.queues.lock().iter() {
            let running = running.0.lock();
            let ages = || running.iter().map(|begin| now.saturating_duration_since(*begin).as_secs_f64());
            self.unfinished.with_label_values(&[name]).set(ages().sum());
            self.longest.with_label_values(&[name]).set(ages().fold(0.0, f64::max));
        }
        [self.unfinished.collect(), self.longest.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::clock::Clock;

    use super::*;
    use crate::Queue;

    #[tokio::test(start_paused = true)]
    async fn unfinished_work_grows_until_it_is_done() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        let loops = LoopMetrics::new(&metrics).expect("metrics");
        let queue = Queue::new(Some(loops.queue("q")));
        let rows = || {
            let page = String::from_utf8(metrics.encode().expect("encoded")).expect("text");
            ["workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"].map(|name| {
                let row = format!("{name}{{name=\"q\"}} ");
                page.lines().find_map(|line| line.strip_prefix(&row)?.parse::<f64>().ok())
            })
        };
        queue.add("a");
        queue.add("b");
        queue.get().await.expect("a key");
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.get().await.expect("a key");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(rows(), [Some(7.0), Some(5.0)]);
        queue.done(&"a");
        assert_eq!(rows(), [Some(2.0), Some(2.0)]);
        queue.done(&"b");
        assert_eq!(rows(), [Some(0.0), Some(0.0)]);
    }
}
