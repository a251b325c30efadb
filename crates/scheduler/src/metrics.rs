//! Metrics with the names, labels and buckets of Kubernetes' scheduler, so that its dashboards and alerts work
//! unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::metrics::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, MetricsError,
    exponential_buckets as buckets,
};

use crate::framework::Point;
use crate::plugins::{self, PluginId, PluginSet};
use crate::queue::Depth;
use crate::state::Cluster;

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptLabel {
    Scheduled,
    Unschedulable,
    Error,
}

/// Metrics of a scheduler with all its profiles.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    attempts: IntCounterVec,
    attempt_seconds: HistogramVec,
    extension_points: HistogramVec,
    unschedulable: IntGaugeVec,
    algorithm_seconds: Histogram,
    sli_seconds: HistogramVec,
    pod_attempts: Histogram,
    victims: Histogram,
    preemptions: IntCounter,
    incoming: IntCounterVec,
    pending: [IntGauge; 4],
    cached: [IntGauge; 3],
    evaluations: IntCounterVec,
    executions: HistogramVec,
    hints: HistogramVec,
    events: HistogramVec,
    after_flush: IntCounter,
    preemption_tasks: IntCounterVec,
    preemption_task_seconds: HistogramVec,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    claim_creations: IntCounterVec,
    condition_allocations: IntCounterVec,
    condition_seconds: HistogramVec,
    pending_calls: IntGaugeVec,
    /// Bindings in progress.
    binding: IntGauge,
}

/// Work in progress; it ends on drop.
pub struct InProgress(IntGauge);

impl InProgress {
    fn of(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Extension points whose plugins are evaluated, with counters of their own.
const EVALUATED: [Point; 3] = [Point::PreFilter, Point::Filter, Point::Score];
/// Share of the attempts and hints whose plugins are timed: one of this number, as in Kubernetes.
const SAMPLE: u64 = 10;

/// Work whose plugins are timed at times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledWork {
    Search,
    Scores,
    Hints,
}

/// Metrics of the queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    incoming: IntCounterVec,
    unschedulable: IntGaugeVec,
}

/// Metrics of one profile, looked up once.
#[derive(Clone, Debug)]
pub struct ProfileMetrics {
    counts: [IntCounter; 3],
    seconds: [Histogram; 3],
    name: Arc<str>,
    points: HistogramVec,
    /// Successful runs of the extension points of each attempt.
    filter: Histogram,
    score: Histogram,
    bind: Histogram,
    /// By plugin, for each point of [`EVALUATED`].
    evaluations: Arc<Vec<[Option<IntCounter>; 3]>>,
    executions: HistogramVec,
    hints: HistogramVec,
    /// Numbers of searches, scorings and hints, for sampling.
    turns: Arc<[AtomicU64; 3]>,
}

impl SchedulerMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let latency = buckets(0.001, 2.0, 15);
        let pending = metrics.gauges(
            "scheduler_pending_pods",
            "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means \
             number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the \
             scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the \
             scheduler never attempted to schedule because they are gated.",
            &["queue"],
        )?;
        let cached = metrics.gauges(
            "scheduler_cache_size",
            "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
            &["type"],
        )?;
        Ok(Self {
            attempts: metrics.counters(
                "scheduler_schedule_attempts_total",
                "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be \
                 scheduled, while 'error' means an internal scheduler problem.",
                &["result", "profile"],
            )?,
            attempt_seconds: metrics.histograms(
                "scheduler_scheduling_attempt_duration_seconds",
                "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                &["result", "profile"],
                &latency,
            )?,
            extension_points: metrics.histograms(
                "scheduler_framework_extension_point_duration_seconds",
                "Latency for running all plugins of a specific extension point.",
                &["extension_point", "status", "profile"],
                &buckets(0.0001, 2.0, 12),
            )?,
            unschedulable: metrics.gauges(
                "scheduler_unschedulable_pods",
                "The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all \
                 plugins that caused it to not schedule and so this metric have meaning only when broken down by \
                 plugin.",
                &["plugin", "profile"],
            )?,
            algorithm_seconds: metrics.histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Scheduling algorithm latency in seconds",
                &latency,
            )?,
            sli_seconds: metrics.histograms(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might \
                 involve multiple scheduling attempts.",
                &["attempts"],
                &buckets(0.01, 2.0, 20),
            )?,
            pod_attempts: metrics.histogram(
                "scheduler_pod_scheduling_attempts",
                "Number of attempts to successfully schedule a pod.",
                &buckets(1.0, 2.0, 5),
            )?,
            victims: metrics.histogram(
                "scheduler_preemption_victims",
                "Number of selected preemption victims",
                &buckets(1.0, 2.0, 7),
            )?,
            preemptions: metrics.counter(
                "scheduler_preemption_attempts_total",
                "Total preemption attempts in the cluster till now",
            )?,
            incoming: metrics.counters(
                "scheduler_queue_incoming_pods_total",
                "Number of pods added to scheduling queues by event and queue type.",
                &["queue", "event"],
            )?,
            evaluations: metrics.counters(
                "scheduler_plugin_evaluation_total",
                "Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter and Score).",
                &["plugin", "extension_point", "profile"],
            )?,
            executions: metrics.histograms(
                "scheduler_plugin_execution_duration_seconds",
                "Duration for running a plugin at a specific extension point.",
                &["plugin", "extension_point", "status"],
                &buckets(0.00001, 1.5, 20),
            )?,
            hints: metrics.histograms(
                "scheduler_queueing_hint_execution_duration_seconds",
                "Duration for running a queueing hint function of a plugin.",
                &["plugin", "event", "hint"],
                &buckets(0.00001, 1.5, 20),
            )?,
            events: metrics.histograms(
                "scheduler_event_handling_duration_seconds",
                "Event handling latency in seconds.",
                &["event"],
                &buckets(0.0001, 2.0, 12),
            )?,
            after_flush: metrics.counter(
                "scheduler_pod_scheduled_after_flush_total",
                "Number of pods that were successfully scheduled after being flushed from unschedulablePods due to timeout.",
            )?,
            preemption_tasks: metrics.counters(
                "scheduler_preemption_goroutines_execution_total",
                "Number of preemption tasks executed.",
                &["result"],
            )?,
            preemption_task_seconds: metrics.histograms(
                "scheduler_preemption_goroutines_duration_seconds",
                "Duration in seconds for running tasks for the preemption.",
                &["result"],
                &buckets(0.01, 2.0, 20),
            )?,
            calls: metrics.counters(
                "scheduler_async_api_call_execution_total",
                "Total number of API calls executed beside the scheduling loop.",
                &["call_type", "result"],
            )?,
            call_seconds: metrics.histograms(
                "scheduler_async_api_call_execution_duration_seconds",
                "Duration in seconds for executing an API call beside the scheduling loop.",
                &["call_type", "result"],
                &latency,
            )?,
            claim_creations: metrics.counters(
                "scheduler_resourceclaim_creates_total",
                "Number of ResourceClaims creation requests within scheduler",
                &["status"],
            )?,
            condition_allocations: metrics.counters(
                "scheduler_dra_bindingconditions_allocations_total",
                "Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt",
                &["profile", "driver", "status"],
            )?,
            condition_seconds: metrics.histograms(
                "scheduler_dra_bindingconditions_wait_duration_seconds",
                "Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
                &["profile", "driver", "status"],
                &buckets(0.1, 2.0, 14),
            )?,
            pending_calls: metrics.gauges(
                "scheduler_pending_async_api_calls",
                "Number of API calls currently pending or executing beside the scheduling loop.",
                &["call_type"],
            )?,
            binding: metrics
                .gauges(
                    "scheduler_goroutines",
                    "Number of running tasks split by the work they do such as binding.",
                    &["operation"],
                )?
                .with_label_values(&["binding"]),
            pending: ["active", "backoff", "unschedulable", "gated"]
                .map(|queue| pending.with_label_values(&[queue])),
            cached: ["nodes", "pods", "assumed_pods"].map(|kind| cached.with_label_values(&[kind])),
        })
    }

    #[must_use]
    pub fn profile(&self, name: &str) -> ProfileMetrics {
        let results = ["scheduled", "unschedulable", "error"];
        let point = |point: Point| self.extension_points.with_label_values(&[point.name(), "Success", name]);
        let evaluated = |plugin: &plugins::Row| {
            let labels = |point: Point| [plugin.name, point.name(), name];
            EVALUATED.map(|point| {
                // Rows of points that the plugin does not have would stay 0.
                let has = plugin.points.contains(&point);
                has.then(|| self.evaluations.with_label_values(&labels(point)))
            })
        };
        ProfileMetrics {
            counts: results.map(|result| self.attempts.with_label_values(&[result, name])),
            seconds: results.map(|result| self.attempt_seconds.with_label_values(&[result, name])),
            name: name.into(),
            points: self.extension_points.clone(),
            filter: point(Point::Filter),
            score: point(Point::Score),
            bind: point(Point::Bind),
            evaluations: Arc::new(plugins::ALL.iter().map(evaluated).collect()),
            executions: self.executions.clone(),
            hints: self.hints.clone(),
            turns: Arc::default(),
        }
    }

    #[must_use]
    pub fn queue(&self) -> QueueMetrics {
        QueueMetrics { incoming: self.incoming.clone(), unschedulable: self.unschedulable.clone() }
    }

    /// Sets the gauges of queue and cache sizes.
    pub fn sizes(&self, depth: Depth, cluster: &Cluster) {
        let depths = [depth.active, depth.backoff, depth.unschedulable, depth.gated];
        for (gauge, count) in self.pending.iter().zip(depths) {
            gauge.set(number(count));
        }
        let sizes = [cluster.order().len(), cluster.placed_pods(), cluster.assumed_pods()];
        for (gauge, count) in self.cached.iter().zip(sizes) {
            gauge.set(number(count));
        }
    }

    pub fn searched(&self, took: Duration) {
        self.algorithm_seconds.observe(took.as_secs_f64());
    }

    pub fn preemption(&self, victims: Option<usize>) {
        self.preemptions.inc();
        if let Some(victims) = victims {
            self.victims.observe(victims as f64);
        }
    }

    /// Records a handled change.
    pub fn handled(&self, event: &str, took: Duration) {
        self.events.with_label_values(&[event]).observe(took.as_secs_f64());
    }

    /// Records the end of the deletions of a preemption.
    pub fn evicted(&self, is_ok: bool, took: Duration) {
        let result = if is_ok { "success" } else { "error" };
        self.preemption_tasks.with_label_values(&[result]).inc();
        self.preemption_task_seconds.with_label_values(&[result]).observe(took.as_secs_f64());
    }

    /// An API call beside the scheduling loop that begins to wait.
    #[must_use]
    pub fn pending_call(&self, call: &str) -> InProgress {
        InProgress::of(self.pending_calls.with_label_values(&[call]))
    }

    /// Records an API call beside the scheduling loop.
    pub fn called(&self, call: &str, is_ok: bool, took: Duration) {
        let labels = [call, if is_ok { "success" } else { "error" }];
        self.calls.with_label_values(&labels).inc();
        self.call_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Records the creation of a claim for extended resources.
    pub fn claim_created(&self, is_ok: bool) {
        let status = if is_ok { "success" } else { "failure" };
        self.claim_creations.with_label_values(&[status]).inc();
    }

    /// Records the end of the wait for binding conditions of a device.
    pub fn conditions_awaited(
        &self,
        profile: &str,
        driver: &str,
        status: &str,
        has_conditions: bool,
        took: Duration,
    ) {
        let labels = [profile, driver, status];
        self.condition_seconds.with_label_values(&labels).observe(took.as_secs_f64());
        if has_conditions {
            self.condition_allocations.with_label_values(&labels).inc();
        }
    }

    /// A binding task that begins.
    #[must_use]
    pub fn binding_task(&self) -> InProgress {
        InProgress::of(self.binding.clone())
    }

    /// Records a bound pod with its number of attempts and the time since it was first tried.
    pub fn bound(&self, attempts: u32, waited: Duration, was_flushed: bool) {
        self.after_flush.inc_by(u64::from(was_flushed));
        self.pod_attempts.observe(f64::from(attempts));
        let label = match attempts {
            0..=15 => attempts.to_string(),
            _ => "16+".to_owned(),
        };
        self.sli_seconds.with_label_values(&[&label]).observe(waited.as_secs_f64());
    }
}

impl ProfileMetrics {
    pub fn attempt(&self, outcome: AttemptLabel, took: Duration) {
        let at = outcome as usize;
        self.counts[at].inc();
        self.seconds[at].observe(took.as_secs_f64());
    }

    /// Records a run of all plugins of an extension point.
    pub fn point(&self, point: Point, status: &str, took: Duration) {
        let success = match point {
            Point::Filter => Some(&self.filter),
            Point::Score => Some(&self.score),
            Point::Bind => Some(&self.bind),
            _ => None,
        };
        let took = took.as_secs_f64();
        match success.filter(|_| status == SUCCESS) {
            Some(histogram) => histogram.observe(took),
            None => self.points.with_label_values(&[point.name(), status, &self.name]).observe(took),
        }
    }

    /// Counts `count` evaluations of a plugin.
    pub fn evaluated(&self, plugin: PluginId, point: Point, count: usize) {
        let at = EVALUATED.iter().position(|known| *known == point);
        let counters = at.and_then(|at| self.evaluations.get(plugin.index())?[at].as_ref());
        if let Some(counter) = counters {
            counter.inc_by(count as u64);
        }
    }

    /// Reports whether the plugins of this run are timed.
    #[must_use]
    pub fn is_sampled(&self, work: SampledWork) -> bool {
        self.turns[work as usize].fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE)
    }

    /// Records a run of a plugin.
    pub fn executed(&self, plugin: PluginId, point: Point, status: &str, begin: Instant) {
        let labels = [plugin.name(), point.name(), status];
        self.executions.with_label_values(&labels).observe(begin.elapsed().as_secs_f64());
    }

    /// Records a queueing hint.
    pub fn hinted(&self, plugin: PluginId, event: &str, helps: bool, begin: Instant) {
        let hint = if helps { "Queue" } else { "QueueSkip" };
        let hints = self.hints.with_label_values(&[plugin.name(), event, hint]);
        hints.observe(begin.elapsed().as_secs_f64());
    }
}

/// Status of an extension point or plugin that succeeded.
pub const SUCCESS: &str = "Success";

impl QueueMetrics {
    /// Records a pod that was added to a queue.
    pub fn queued(&self, queue: &str, event: &str) {
        self.incoming.with_label_values(&[queue, event]).inc();
    }

    /// Adds or removes a pod that these plugins rejected.
    pub fn track_rejected(&self, profile: &str, plugins: PluginSet, more: bool) {
        for plugin in plugins.iter() {
            let gauge = self.unschedulable.with_label_values(&[plugin.name(), profile]);
            if more { gauge.inc() } else { gauge.dec() }
        }
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::PluginId;
    use base::clock::Clock;

    #[test]
    fn metric_names_match_kubernetes() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = SchedulerMetrics::new(&registry).expect("registered");
        let profile = metrics.profile("default-scheduler");
        profile.attempt(AttemptLabel::Unschedulable, Duration::from_millis(3));
        let mut plugins = PluginSet::default();
        plugins.extend(PluginId::named("NodeResourcesFit"));
        metrics.queue().track_rejected("default-scheduler", plugins, true);
        metrics.bound(20, Duration::from_secs(1), true);
        profile.point(Point::PreFilter, "Unschedulable", Duration::from_millis(1));
        profile.evaluated(PluginId::named("NodePorts").expect("a plugin"), Point::Filter, 7);
        let samples = (0..20).filter(|_| {
            let is_sampled = profile.is_sampled(SampledWork::Search);
            profile.is_sampled(SampledWork::Scores) && is_sampled
        });
        assert_eq!(samples.count(), 2, "both are sampled in the same attempts");
        metrics.called("pod_binding", false, Duration::from_millis(1));
        let task = metrics.binding_task();
        metrics.preemption(Some(2));
        metrics.queue().queued("active", "PodAdd");
        metrics.sizes(Depth { gated: 4, ..Depth::default() }, &Cluster::new());
        let text = String::from_utf8(registry.encode().expect("encoded")).expect("text");
        for line in [
            r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} 1"#,
            r#"scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 1"#,
            r#"scheduler_pod_scheduling_sli_duration_seconds_count{attempts="16+"} 1"#,
            r#"scheduler_scheduling_attempt_duration_seconds_bucket{profile="default-scheduler",result="unschedulable",le="0.004"} 1"#,
            "scheduler_preemption_attempts_total 1",
            "scheduler_pod_scheduled_after_flush_total 1",
            r#"scheduler_framework_extension_point_duration_seconds_count{extension_point="PreFilter",profile="default-scheduler",status="Unschedulable"} 1"#,
            r#"scheduler_plugin_evaluation_total{extension_point="Filter",plugin="NodePorts",profile="default-scheduler"} 7"#,
            r#"scheduler_async_api_call_execution_total{call_type="pod_binding",result="error"} 1"#,
            r#"scheduler_goroutines{operation="binding"} 1"#,
            r#"scheduler_preemption_victims_bucket{le="2"} 1"#,
            r#"scheduler_pending_pods{queue="gated"} 4"#,
            r#"scheduler_queue_incoming_pods_total{event="PodAdd",queue="active"} 1"#,
            r#"scheduler_cache_size{type="assumed_pods"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        let absent = r#"extension_point="Score",plugin="NodePorts""#;
        assert!(!text.contains(absent), "a point that the plugin does not have: {text}");
        drop(task);
        assert_eq!(metrics.binding.get(), 0);
    }
}
