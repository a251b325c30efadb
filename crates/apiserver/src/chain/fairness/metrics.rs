//! Metrics of priority and fairness under Kubernetes' names, read from the levels when scraped.

use super::Fairness;
use super::histogram::Histogram;
use super::level::{SchemaStats, State};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const PREFIX: &str = "apiserver_flowcontrol_";
const LEVEL: &str = "priority_level";
const SCHEMA: &str = "flow_schema";

/// Name, type, labels and help of every family.
const FAMILIES: [(&str, MetricType, &[&str], &str); 28] = [
    (
        "rejected_requests_total",
        MetricType::COUNTER,
        &[SCHEMA, LEVEL, "reason"],
        "Number of requests rejected by API Priority and Fairness subsystem",
    ),
    (
        "dispatched_requests_total",
        MetricType::COUNTER,
        &[SCHEMA, LEVEL],
        "Number of requests executed by API Priority and Fairness subsystem",
    ),
    (
        "current_inqueue_requests",
        MetricType::GAUGE,
        &[SCHEMA, LEVEL],
        "Number of requests currently pending in queues of the API Priority and Fairness subsystem",
    ),
    (
        "current_inqueue_seats",
        MetricType::GAUGE,
        &[SCHEMA, LEVEL],
        "Number of seats currently pending in queues of the API Priority and Fairness subsystem",
    ),
    (
        "current_executing_requests",
        MetricType::GAUGE,
        &[SCHEMA, LEVEL],
        "Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
    ),
    (
        "current_executing_seats",
        MetricType::GAUGE,
        &[SCHEMA, LEVEL],
        "Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
    ),
    (
        "request_wait_duration_seconds",
        MetricType::HISTOGRAM,
        &["execute", SCHEMA, LEVEL],
        "Length of time a request spent waiting in its queue",
    ),
    (
        "request_execution_seconds",
        MetricType::HISTOGRAM,
        &[SCHEMA, LEVEL, "type"],
        "Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem",
    ),
    (
        "request_queue_length_after_enqueue",
        MetricType::HISTOGRAM,
        &[SCHEMA, LEVEL],
        "Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued",
    ),
    (
        "work_estimated_seats",
        MetricType::HISTOGRAM,
        &[SCHEMA, LEVEL],
        "Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness",
    ),
    (
        "watch_count_samples",
        MetricType::HISTOGRAM,
        &[SCHEMA, LEVEL],
        "count of watchers for mutating requests in API Priority and Fairness",
    ),
    (
        "request_dispatch_no_accommodation_total",
        MetricType::COUNTER,
        &[SCHEMA, LEVEL],
        "Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats",
    ),
    (
        "nominal_limit_seats",
        MetricType::GAUGE,
        &[LEVEL],
        "Nominal number of execution seats configured for each priority level",
    ),
    (
        "lower_limit_seats",
        MetricType::GAUGE,
        &[LEVEL],
        "Configured lower bound on number of execution seats available to each priority level",
    ),
    (
        "upper_limit_seats",
        MetricType::GAUGE,
        &[LEVEL],
        "Configured upper bound on number of execution seats available to each priority level",
    ),
    (
        "current_limit_seats",
        MetricType::GAUGE,
        &[LEVEL],
        "current derived number of execution seats available to each priority level",
    ),
    (
        "demand_seats_high_watermark",
        MetricType::GAUGE,
        &[LEVEL],
        "High watermark, over last adjustment period, of demand_seats",
    ),
    (
        "demand_seats_average",
        MetricType::GAUGE,
        &[LEVEL],
        "Time-weighted average, over last adjustment period, of demand_seats",
    ),
    (
        "demand_seats_stdev",
        MetricType::GAUGE,
        &[LEVEL],
        "Time-weighted standard deviation, over last adjustment period, of demand_seats",
    ),
    ("demand_seats_smoothed", MetricType::GAUGE, &[LEVEL], "Smoothed seat demands"),
    ("target_seats", MetricType::GAUGE, &[LEVEL], "Seat allocation targets"),
    (
        "seat_fair_frac",
        MetricType::GAUGE,
        &[],
        "Fair fraction of server's concurrency to allocate to each priority level that can use it",
    ),
    ("current_r", MetricType::GAUGE, &[LEVEL], "R(time of last change)"),
    (
        "priority_level_seat_utilization",
        MetricType::HISTOGRAM,
        &["phase", LEVEL],
        "Observations, at the end of every nanosecond, of utilization of seats for any stage of execution (but only initial stage for WATCHes)",
    ),
    (
        "priority_level_request_utilization",
        MetricType::HISTOGRAM,
        &["phase", LEVEL],
        "Observations, at the end of every nanosecond, of number of requests (as a fraction of the relevant limit) waiting or in any stage of execution (but only initial stage for WATCHes)",
    ),
    (
        "demand_seats",
        MetricType::HISTOGRAM,
        &[LEVEL],
        "Observations, at the end of every nanosecond, of (the number of seats each priority level could use) / (nominal number of seats for that level)",
    ),
    (
        "request_concurrency_limit",
        MetricType::GAUGE,
        &[LEVEL],
        "Nominal number of execution seats configured for each priority level",
    ),
    (
        "request_concurrency_in_use",
        MetricType::GAUGE,
        &[SCHEMA, LEVEL],
        "Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
    ),
];

/// Reads the levels when scraped.
pub struct FairnessCollector {
    fairness: Arc<Fairness>,
    descriptions: Vec<Desc>,
}

impl FairnessCollector {
    pub fn new(fairness: Arc<Fairness>) -> Result<Self, prometheus::Error> {
        let describe = |(name, _, labels, help): &(&str, MetricType, &[&str], &str)| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(format!("{PREFIX}{name}"), (*help).to_owned(), labels, Default::default())
        };
        Ok(Self { fairness, descriptions: FAMILIES.iter().map(describe).collect::<Result<_, _>>()? })
    }
}

impl Collector for FairnessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        self.fairness.lend_if_due(now);
        let (levels, fraction) = {
            let ledger = self.fairness.ledger.lock();
            (ledger.levels.values().cloned().collect::<Vec<_>>(), ledger.fair_fraction)
        };
        let mut figures = Figures::default();
        figures.number("seat_fair_frac", &[], fraction);
        for level in levels {
            let mut state = level.state();
            figures.level(&level.name, &mut state, now);
            for stats in &state.schemas {
                figures.schema(&level.name, stats);
            }
        }
        figures.families()
    }
}

type Labels<'a> = [(&'a str, &'a str)];

#[derive(Default)]
struct Figures {
    metrics: BTreeMap<&'static str, Vec<Metric>>,
}

impl Figures {
    fn add(&mut self, name: &'static str, labels: &Labels<'_>, fill: impl FnOnce(&mut Metric)) {
        let mut metric = Metric::default();
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        metric.set_label(labels.iter().map(pair).collect());
        fill(&mut metric);
        self.metrics.entry(name).or_default().push(metric);
    }

    /// A gauge or counter, by the family's type.
    fn number(&mut self, name: &'static str, labels: &Labels<'_>, value: f64) {
        let counts = FAMILIES.iter().any(|family| family.0 == name && family.1 == MetricType::COUNTER);
        self.add(name, labels, |metric| {
            if counts {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        });
    }

    fn histogram(&mut self, name: &'static str, labels: &Labels<'_>, values: &Histogram) {
        if values.count() == 0 {
            return;
        }
        self.add(name, labels, |metric| {
            let bucket = |(bound, count): (&f64, u64)| {
                let mut bucket = proto::Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(count);
                bucket
            };
            let mut histogram = proto::Histogram::default();
            histogram.set_bucket(values.bounds.iter().zip(values.cumulative()).map(bucket).collect());
            histogram.set_sample_count(values.count());
            histogram.set_sample_sum(values.sum);
            metric.set_histogram(histogram);
        });
    }

    fn level(&mut self, name: &str, state: &mut State, now: Instant) {
        let labels = &[(LEVEL, name)];
        let (limits, stats) = (state.limits, state.demand.stats);
        for (figure, value) in [
            ("nominal_limit_seats", limits.nominal as f64),
            ("request_concurrency_limit", limits.nominal as f64),
            ("lower_limit_seats", limits.lower as f64),
            ("upper_limit_seats", limits.upper as f64),
            ("current_limit_seats", limits.current as f64),
            ("demand_seats_high_watermark", stats.high_watermark as f64),
            ("demand_seats_average", stats.average),
            ("demand_seats_stdev", stats.deviation),
            ("demand_seats_smoothed", stats.smoothed),
            ("target_seats", state.target),
            ("current_r", state.set.progress as f64 / 1e9),
        ] {
            self.number(figure, labels, value);
        }
        self.histogram("demand_seats", labels, state.demand_ratio.read(now));
        let phase = |phase| [("phase", phase), (LEVEL, name)];
        let (waiting, executing) = (phase("waiting"), phase("executing"));
        self.histogram("priority_level_seat_utilization", &executing, state.seat_utilization.read(now));
        self.histogram("priority_level_request_utilization", &waiting, state.waiting_requests.read(now));
        self.histogram("priority_level_request_utilization", &executing, state.executing_requests.read(now));
    }

    fn schema(&mut self, level: &str, stats: &SchemaStats) {
        let labels = &[(SCHEMA, &*stats.name), (LEVEL, level)];
        for (figure, value) in [
            ("dispatched_requests_total", stats.dispatched as f64),
            ("current_inqueue_requests", stats.waiting as f64),
            ("current_inqueue_seats", stats.seats_waiting as f64),
            ("current_executing_requests", stats.executing as f64),
            ("current_executing_seats", stats.seats as f64),
            ("request_concurrency_in_use", stats.seats as f64),
        ] {
            self.number(figure, labels, value);
        }
        if stats.no_accommodation > 0 {
            self.number("request_dispatch_no_accommodation_total", labels, stats.no_accommodation as f64);
        }
        for (reason, count) in ["concurrency-limit", "queue-full", "time-out"].iter().zip(stats.rejected) {
            if count > 0 {
                let labels = &[(SCHEMA, &*stats.name), (LEVEL, level), ("reason", *reason)];
                self.number("rejected_requests_total", labels, count as f64);
            }
        }
        let with = |name, value| [(name, value), (SCHEMA, &*stats.name), (LEVEL, level)];
        self.histogram("request_wait_duration_seconds", &with("execute", "true"), &stats.waited);
        self.histogram("request_wait_duration_seconds", &with("execute", "false"), &stats.waited_in_vain);
        let kind = |value| [(SCHEMA, &*stats.name), (LEVEL, level), ("type", value)];
        self.histogram("request_execution_seconds", &kind("regular"), &stats.executed);
        self.histogram("request_execution_seconds", &kind("watch"), &stats.executed_watch);
        self.histogram("request_queue_length_after_enqueue", labels, &stats.queue_length);
        self.histogram("work_estimated_seats", labels, &stats.estimated_seats);
        self.histogram("watch_count_samples", labels, &stats.watch_count);
    }

    fn families(mut self) -> Vec<MetricFamily> {
        let family = |(name, kind, _, help): &(&'static str, MetricType, &[&str], &str)| {
            let metrics = self.metrics.remove(name)?;
            let mut family = MetricFamily::default();
            family.set_name(format!("{PREFIX}{name}"));
            family.set_help((*help).to_owned());
            family.set_field_type(*kind);
            family.set_metric(metrics);
            Some(family)
        };
        FAMILIES.iter().filter_map(family).collect()
    }
}
