//! Scrapes all nodes at once, again and again. A node that hangs or is down costs its own rows only.

use crate::kubelet::{Kubelets, ScrapeError};
use crate::record::{NodeRecord, PodRecord};
use crate::stats::Stats;
use crate::storage::Storage;
use base::clock::Clock;
use base::errors::chain;
use base::metrics::{Metrics, MetricsError};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use rand::Rng as _;
use runtime::Cache;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Requests of a cycle are spread over so much time per node, and so much in all.
const DELAY_PER_NODE: Duration = Duration::from_millis(8);
const LONGEST_DELAY: Duration = Duration::from_secs(4);

/// Nodes with series of their own, at most: the metrics are part of the API server's page.
const MAX_LABELLED_NODES: usize = 1000;
/// Consecutive failures of a node that are logged: its kubelet may start later than the control plane.
const REPORTED: u32 = 2;
/// Prometheus' default buckets.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Figures of the scraper, named as metrics-server names them.
#[derive(Clone)]
pub struct ScrapeMetrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    last_requests: IntGaugeVec,
    cycles: Histogram,
    points: IntGaugeVec,
    nodes: IntGauge,
}

impl ScrapeMetrics {
    pub fn new(metrics: &Metrics, resolution: Duration) -> Result<Self, MetricsError> {
        Ok(Self {
            requests: metrics.counters(
                "metrics_server_kubelet_request_total",
                "Number of requests sent to Kubelet API",
                &["success"],
            )?,
            durations: metrics.histograms(
                "metrics_server_kubelet_request_duration_seconds",
                "Duration of requests to Kubelet API in seconds",
                &["node"],
                &BUCKETS,
            )?,
            last_requests: metrics.gauges(
                "metrics_server_kubelet_last_request_time_seconds",
                "Time of last request performed to Kubelet API since unix epoch in seconds",
                &["node"],
            )?,
            cycles: metrics.histogram(
                "metrics_server_manager_tick_duration_seconds",
                "The total time spent collecting and storing metrics in seconds.",
                &cycle_buckets(resolution.as_secs_f64()),
            )?,
            points: metrics.gauges(
                "metrics_server_storage_points",
                "Number of metrics points stored.",
                &["type"],
            )?,
            nodes: metrics.gauge(
                "ferry_metrics_scraped_nodes",
                "Number of nodes that the last cycle collected metrics from.",
            )?,
        })
    }

    fn request(&self, node: &str, took: Duration, now: i64) {
        self.durations.with_label_values(&[node]).observe(took.as_secs_f64());
        self.last_requests.with_label_values(&[node]).set(now);
    }

    fn forget(&self, node: &str) {
        let _ = self.durations.remove_label_values(&[node]);
        let _ = self.last_requests.remove_label_values(&[node]);
    }
}

/// The age of served usage, as metrics-server names it.
pub fn freshness(metrics: &Metrics) -> Result<Histogram, MetricsError> {
    let buckets: Vec<f64> = (0..20).map(|power| 1.364_f64.powi(power)).collect();
    metrics.histogram(
        "metrics_server_api_metric_freshness_seconds",
        "Freshness of metrics exported",
        &buckets,
    )
}

/// The default buckets, with some around the time between two cycles.
fn cycle_buckets(resolution: f64) -> Vec<f64> {
    let mut buckets = BUCKETS.to_vec();
    let (smallest, largest) = (BUCKETS[0], BUCKETS[BUCKETS.len().saturating_sub(1)]);
    if resolution > largest {
        let halfway = largest + (resolution - largest) / 2.0;
        buckets.extend([halfway, resolution, resolution * 1.5, resolution * 2.0]);
    } else if BUCKETS.iter().all(|bucket| (bucket - resolution).abs() >= smallest) {
        let at = BUCKETS.partition_point(|bucket| *bucket <= resolution);
        buckets.insert(at, resolution);
    }
    buckets
}

/// Scrapes the nodes of a cache into a storage.
pub struct Scraper {
    pub nodes: Cache<NodeRecord>,
    pub pods: Cache<PodRecord>,
    pub kubelets: Kubelets,
    pub storage: Arc<Storage>,
    /// Statistics for sinks; not read without one.
    pub stats: Option<Arc<Stats>>,
    pub resolution: Duration,
    /// Nodes to scrape.
    pub selector: LabelSelector,
    pub metrics: ScrapeMetrics,
    pub clock: Clock,
    /// Nodes with series of their own.
    pub labelled: Mutex<HashSet<String>>,
    /// Start of the last cycle.
    pub last_start: Mutex<Option<Instant>>,
    /// Consecutive failures of nodes; each row of failures is logged once.
    pub failing: Mutex<HashMap<String, u32>>,
}

impl Scraper {
    /// Reports whether cycles begin when they are due.
    pub fn is_timely(&self) -> bool {
        let longest = self.resolution.saturating_mul(3) / 2;
        self.last_start.lock().is_none_or(|start| start.elapsed() <= longest)
    }

    /// Scrapes every node once.
    pub async fn cycle(&self) {
        let start = Instant::now();
        *self.last_start.lock() = Some(start);
        let all = self.nodes.all();
        let is_selected =
            |node: &&Arc<NodeRecord>| self.selector.is_empty() || self.selector.matches(&*node.labels);
        let nodes: Vec<&Arc<NodeRecord>> = all.iter().filter(is_selected).collect();
        let names: HashSet<&str> = nodes.iter().map(|node| name_of(node)).collect();
        self.storage.retain(|name| names.contains(name));
        self.kubelets.retain(|name| names.contains(name));
        if let Some(stats) = &self.stats {
            stats.retain(|name| names.contains(name));
        }
        self.failing.lock().retain(|name, _| names.contains(name.as_str()));
        self.labelled.lock().retain(|name| {
            let is_present = names.contains(name.as_str());
            if !is_present {
                self.metrics.forget(name);
            }
            is_present
        });
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let spread = DELAY_PER_NODE.saturating_mul(count).min(LONGEST_DELAY).min(self.resolution / 2);
        let requests: FuturesUnordered<_> = nodes.iter().map(|node| self.scrape(node, spread)).collect();
        let scraped = requests.filter(|succeeded| std::future::ready(*succeeded)).count().await;
        self.metrics.nodes.set(i64::try_from(scraped).unwrap_or(i64::MAX));
        let (of_nodes, of_containers) = self.storage.points();
        for (kind, count) in [("node", of_nodes), ("container", of_containers)] {
            self.metrics.points.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.metrics.cycles.observe(start.elapsed().as_secs_f64());
    }

    /// Scrapes a node after a random part of `spread`. Its rows are stored at once, so no node waits for another.
    async fn scrape(&self, node: &NodeRecord, spread: Duration) -> bool {
        let name = name_of(node);
        let delay = spread.mul_f64(rand::rng().random_range(0.0..1.0));
        tokio::time::sleep(delay).await;
        let bound = |namespace: &str, pod: &str| self.pods.get(namespace, pod).filter(|pod| pod.node == name);
        let start = Instant::now();
        let outcome = self.kubelets.scrape(node, &bound).await;
        if self.is_labelled(name) {
            self.metrics.request(name, start.elapsed(), self.clock.now().as_second());
        }
        match outcome {
            Ok(batch) => {
                self.storage.store(name, Some(batch));
                self.metrics.requests.with_label_values(&["true"]).inc();
                if let Some(stats) = &self.stats {
                    let found = self.kubelets.stats(node, &bound).await;
                    let found = found.inspect_err(|error| {
                        tracing::debug!(
                            node = name,
                            error = chain(error),
                            "failed to read statistics of node"
                        );
                    });
                    stats.store(name, found.ok());
                }
                if self.failing.lock().remove(name).is_some_and(|failures| failures >= REPORTED) {
                    tracing::info!(node = name, "scraping the node succeeds again");
                }
                true
            }
            Err(error) => {
                self.storage.store(name, None);
                if let Some(stats) = &self.stats {
                    stats.store(name, None);
                }
                self.metrics.requests.with_label_values(&["false"]).inc();
                // Nodes without a kubelet, such as simulated ones, are not worth a warning each.
                let is_expected = matches!(error, ScrapeError::NoPort);
                let error = chain(&error);
                let failures = {
                    let mut failing = self.failing.lock();
                    let failures = failing.entry(name.to_owned()).or_default();
                    *failures = failures.saturating_add(1);
                    *failures
                };
                if failures == REPORTED && !is_expected {
                    tracing::warn!(node = name, error, "failed to scrape node");
                } else {
                    tracing::debug!(node = name, error, "failed to scrape node");
                }
                false
            }
        }
    }
}

impl Scraper {
    /// Reports whether a node has series of its own.
    fn is_labelled(&self, node: &str) -> bool {
        let mut labelled = self.labelled.lock();
        if labelled.contains(node) {
            return true;
        }
        labelled.len() < MAX_LABELLED_NODES && labelled.insert(node.to_owned())
    }
}

fn name_of(node: &NodeRecord) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
