//! Metrics with the names, labels and buckets of Kubernetes' scheduler, so that its dashboards and alerts work
//! unchanged.

use std::time::Duration;

use base::metrics::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, MetricsError,
};

use crate::plugins::PluginSet;
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
    filter: Histogram,
    score: Histogram,
    bind: Histogram,
}

/// `count` bounds, each `factor` times the one before.
fn buckets(first: f64, factor: f64, count: i32) -> Vec<f64> {
    (0..count).map(|power| first * factor.powi(power)).collect()
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
            pending: ["active", "backoff", "unschedulable", "gated"]
                .map(|queue| pending.with_label_values(&[queue])),
            cached: ["nodes", "pods", "assumed_pods"].map(|kind| cached.with_label_values(&[kind])),
        })
    }

    #[must_use]
    pub fn profile(&self, name: &str) -> ProfileMetrics {
        let results = ["scheduled", "unschedulable", "error"];
        let point = |point: &str| self.extension_points.with_label_values(&[point, "Success", name]);
        ProfileMetrics {
            counts: results.map(|result| self.attempts.with_label_values(&[result, name])),
            seconds: results.map(|result| self.attempt_seconds.with_label_values(&[result, name])),
            filter: point("Filter"),
            score: point("Score"),
            bind: point("Bind"),
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

    /// Records a bound pod with its number of attempts and the time since it was first tried.
    pub fn bound(&self, attempts: u32, waited: Duration) {
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

    pub fn filtered(&self, took: Duration) {
        self.filter.observe(took.as_secs_f64());
    }

    pub fn scored(&self, took: Duration) {
        self.score.observe(took.as_secs_f64());
    }

    pub fn binding(&self, took: Duration) {
        self.bind.observe(took.as_secs_f64());
    }
}

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
        metrics.bound(20, Duration::from_secs(1));
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
            r#"scheduler_preemption_victims_bucket{le="2"} 1"#,
            r#"scheduler_pending_pods{queue="gated"} 4"#,
            r#"scheduler_queue_incoming_pods_total{event="PodAdd",queue="active"} 1"#,
            r#"scheduler_cache_size{type="assumed_pods"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
