//! Prometheus metrics of this process, in a separate registry.

mod computed;
mod label_limit;
mod registrations;
mod stability;
#[macro_use]
mod table;
mod text;

use std::fs;
use std::sync::Arc;

pub use prometheus::core::{Collector, Desc};
pub use prometheus::proto::{LabelPair, MetricFamily};
pub use prometheus::{
    Error as MetricsError, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::clock::Clock;
use crate::features::FeatureCollector;
use registrations::Registrations;

pub use computed::ComputedGauges;
pub use label_limit::LabelLimit;
pub use prometheus::DEFAULT_BUCKETS;
pub use registrations::RegisteredFamily;
pub use stability::stability;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics registry. Clones share it.
///
/// ```
/// use base::clock::Clock;
/// use base::metrics::Metrics;
///
/// let metrics = Metrics::new(&Clock::system())?;
/// metrics.counter("requests_total", "Number of requests")?.inc();
/// let page = String::from_utf8(metrics.encode()?).expect("text");
/// assert!(page.contains("requests_total 1"));
/// # Ok::<(), base::metrics::MetricsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    registrations: Arc<Registrations>,
}

/// `count` histogram bounds, each `factor` times the one before.
#[must_use]
pub fn exponential_buckets(first: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(first), |last| Some(last * factor)).take(count).collect()
}

impl Metrics {
    /// A registry with the metrics of the process (`process_*`).
    pub fn new(clock: &Clock) -> Result<Self, MetricsError> {
        let metrics =
            Self { registry: Arc::new(Registry::new()), registrations: Arc::new(Registrations::new()?) };
        for collector in metrics.registrations.own() {
            metrics.add(collector)?;
        }
        metrics.register(ProcessCollector::new(clock)?)?;
        metrics.register(FeatureCollector::new()?)?;
        Ok(metrics)
    }

    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricsError> {
        self.add(IntCounter::new(name, help)?)
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, MetricsError> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricsError> {
        self.add(IntGauge::new(name, help)?)
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, MetricsError> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, MetricsError> {
        self.registrations.set_buckets(name, buckets);
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, MetricsError> {
        self.registrations.set_buckets(name, buckets);
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }

    /// Gauges whose rows are computed when they are scraped.
    pub fn computed(&self, name: &str, help: &str, labels: &[&str]) -> Result<ComputedGauges, MetricsError> {
        self.add(ComputedGauges::new(name, help, labels)?)
    }

    /// Registers a metric of any other shape.
    pub fn add<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, MetricsError> {
        self.register(metric.clone())?;
        Ok(metric)
    }

    /// Registers a metric that several registries share; `buckets` are those of a histogram.
    pub fn add_shared<C: Collector + Clone + 'static>(
        &self,
        metric: &C,
        buckets: &[f64],
    ) -> Result<(), MetricsError> {
        for desc in metric.desc() {
            self.registrations.set_buckets(&desc.fq_name, buckets);
        }
        self.register(metric.clone())
    }

    /// Registers a collector that computes its values on each scrape.
    pub fn register<C: Collector + 'static>(&self, collector: C) -> Result<(), MetricsError> {
        let collector = registrations::Registered::new(collector);
        self.registry.register(Box::new(collector.clone()))?;
        self.registrations.add(collector);
        Ok(())
    }

    /// All registered families, also those without samples.
    #[must_use]
    pub fn families(&self) -> Vec<RegisteredFamily> {
        self.registrations.families()
    }

    /// The families that `keep` selects, which may also remove rows of a family.
    pub fn encode_where(&self, keep: impl Fn(&mut MetricFamily) -> bool) -> Result<Vec<u8>, MetricsError> {
        let mut families = self.registry.gather();
        families.retain_mut(|family| keep(family) && !family.get_metric().is_empty());
        Ok(text::encode(&families))
    }

    /// All metrics in the Prometheus text format.
    pub fn encode(&self) -> Result<Vec<u8>, MetricsError> {
        self.encode_where(|_| true)
    }
}

/// Rows of collectors that no registry has, in the Prometheus text format.
#[must_use]
pub fn encode_collectors(collectors: &[&dyn Collector]) -> Vec<u8> {
    let mut families: Vec<_> = collectors.iter().flat_map(|collector| collector.collect()).collect();
    families.retain(|family| !family.get_metric().is_empty());
    text::encode(&families)
}

/// Reads `/proc/self` when scraped.
struct ProcessCollector {
    cpu_seconds: Gauge,
    resident: Gauge,
    virtual_size: Gauge,
    open_files: Gauge,
    max_files: Gauge,
    threads: Gauge,
    start_time: Gauge,
}

impl ProcessCollector {
    fn new(clock: &Clock) -> Result<Self, MetricsError> {
        let start_time = Gauge::new(
            "process_start_time_seconds",
            "Start time of the process since the Unix epoch in seconds.",
        )?;
        start_time.set(clock.now().as_duration().as_secs_f64());
        Ok(Self {
            cpu_seconds: Gauge::new(
                "process_cpu_seconds_total",
                "Total user and system CPU time in seconds.",
            )?,
            resident: Gauge::new("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            virtual_size: Gauge::new("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            open_files: Gauge::new("process_open_fds", "Number of open file descriptors.")?,
            max_files: Gauge::new("process_max_fds", "Maximum number of open file descriptors.")?,
            threads: Gauge::new("process_threads", "Number of threads.")?,
            start_time,
        })
    }

    fn gauges(&self) -> [&Gauge; 7] {
        [
            &self.cpu_seconds,
            &self.max_files,
            &self.open_files,
            &self.resident,
            &self.start_time,
            &self.threads,
            &self.virtual_size,
        ]
    }

    fn refresh(&self) {
        if let Some(usage) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Usage::parse) {
            self.cpu_seconds.set(usage.cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
            self.threads.set(usage.threads as f64);
            self.virtual_size.set(usage.virtual_bytes as f64);
            self.resident.set(usage.resident_pages as f64 * rustix::param::page_size() as f64);
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            self.open_files.set(files.count() as f64);
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        self.max_files.set(limit.current.map_or(f64::MAX, |current| current as f64));
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        let mut families: Vec<_> = self.gauges().into_iter().flat_map(Collector::collect).collect();
        for family in &mut families {
            if family.name() == "process_cpu_seconds_total" {
                as_counter(family);
            }
        }
        families
    }
}

/// CPU time as a counter: the library's counters cannot be set.
fn as_counter(family: &mut MetricFamily) {
    family.set_field_type(prometheus::proto::MetricType::COUNTER);
    for metric in family.mut_metric() {
        let mut counter = prometheus::proto::Counter::default();
        counter.set_value(metric.get_gauge().get_value());
        metric.set_counter(counter);
    }
}

/// Fields of `/proc/self/stat` that are used here.
#[derive(Debug, PartialEq)]
struct Usage {
    cpu_ticks: u64,
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Usage {
    fn parse(stat: &str) -> Option<Self> {
        // The command may contain any character, so fields are counted from its closing parenthesis.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(11)? + field(12)?,
            threads: field(17)?,
            virtual_bytes: field(20)?,
            resident_pages: field(21)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_metrics_are_encoded() {
        let metrics = Metrics::new(&Clock::system()).expect("a fresh registry");
        let requests = metrics.counters("requests_total", "Requests.", &["verb"]).expect("a new name");
        requests.with_label_values(&["get"]).inc_by(3);
        let text = String::from_utf8(metrics.encode().expect("encodes")).expect("text");
        assert!(text.contains("requests_total{verb=\"get\"} 3"), "{text}");
        assert!(text.contains("# TYPE process_cpu_seconds_total counter"), "{text}");
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
        assert!(metrics.counter("requests_total", "Again.").is_err());
    }

    #[test]
    fn families_without_samples_are_described() {
        let metrics = Metrics::new(&Clock::system()).expect("a fresh registry");
        metrics.histograms("seconds", "Seconds.", &["verb", "code"], &[1.0, 2.0]).expect("a new name");
        metrics.counter("apiserver_request_total", "Requests.").expect("a new name");
        let families = metrics.families();
        let found = |name: &str| families.iter().find(|family| family.name == name).expect(name).clone();
        let seconds = found("seconds");
        assert_eq!(
            (seconds.kind, &*seconds.labels),
            ("histogram", &["code".to_owned(), "verb".to_owned()][..])
        );
        assert_eq!(seconds.buckets.as_deref(), Some(&[1.0, 2.0][..]));
        assert_eq!(found("apiserver_request_total").kind, "counter");
        let text = String::from_utf8(metrics.encode().expect("encodes")).expect("text");
        let row = "registered_metrics_total{deprecated_version=\"\",stability_level=\"STABLE\"} 1\n";
        assert!(text.contains(row) && text.contains("\nhidden_metrics_total 0\n"), "{text}");
    }

    #[test]
    fn stat_with_a_hostile_command_name() {
        let stat =
            "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 100 23 0 0 20 0 9 0 55 4096 12 18446744073709551615";
        let want = Usage { cpu_ticks: 123, threads: 9, virtual_bytes: 4096, resident_pages: 12 };
        assert_eq!(Usage::parse(stat), Some(want));
        assert_eq!(Usage::parse("garbage"), None);
    }
}
