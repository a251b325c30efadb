//! Time that a pod takes to start, as Kubernetes' service level indicator measures it.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Pod, PodStatus};

use crate::lifecycle::ObservedPod;
use crate::metrics::KubeletMetrics;
use crate::shared::Shared;
use crate::static_pods::is_static;

/// Progress of a pod's start.
pub(super) struct Startup {
    seen: Instant,
    /// Time spent on images.
    pulling: Duration,
    /// The pod was reported as running.
    running: bool,
    /// All containers were reported as started.
    started: bool,
}

impl Startup {
    /// A pod that ran before this kubelet started is not measured.
    pub fn new(seen_before: bool) -> Self {
        Self { seen: Instant::now(), pulling: Duration::ZERO, running: seen_before, started: seen_before }
    }

    /// Time since the pod was seen for the first time.
    pub fn since_seen(&self) -> Duration {
        self.seen.elapsed()
    }

    pub fn pulled(&mut self, duration: Duration) {
        self.pulling = self.pulling.saturating_add(duration);
    }

    /// Records durations when a status that was written reports the start for the first time.
    pub fn published(&mut self, pod: &Pod, status: &PodStatus, observed: &ObservedPod, shared: &Shared) {
        self.record(pod, status, observed, &shared.metrics, shared.clock.now());
    }

    fn record(
        &mut self,
        pod: &Pod,
        status: &PodStatus,
        observed: &ObservedPod,
        metrics: &KubeletMetrics,
        now: Timestamp,
    ) {
        if !self.running && status.phase.as_deref() == Some("Running") {
            self.running = true;
            metrics.pod_start.observe(self.seen.elapsed().as_secs_f64());
        }
        if self.started || !all_started(pod, status) {
            return;
        }
        self.started = true;
        // The creation time of a static pod is that of its file, if anything.
        let Some(created) = pod.metadata.creation_timestamp.as_ref().filter(|_| !is_static(pod)) else {
            return;
        };
        let total = Duration::try_from(now.duration_since(created.0)).unwrap_or_default();
        metrics.pod_start_total.observe(total.as_secs_f64());
        let init = Duration::try_from(time_of_init_containers(pod, observed)).unwrap_or_default();
        let own = total.saturating_sub(self.pulling).saturating_sub(init);
        metrics.pod_start_sli.observe(own.as_secs_f64());
    }
}

/// Reports whether the status has all regular containers as started.
fn all_started(pod: &Pod, status: &PodStatus) -> bool {
    let wanted = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let started = status.container_statuses.iter().flatten().filter(|one| {
        one.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    wanted > 0 && started.count() >= wanted
}

/// Time from the start of the first init container to the end of the last.
fn time_of_init_containers(pod: &Pod, observed: &ObservedPod) -> SignedDuration {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let names: Vec<&str> = init
        .filter(|container| container.restart_policy.as_deref() != Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let own = || observed.containers.iter().filter(|one| names.contains(&one.name.as_str()));
    let first = own().map(|one| one.started_at).min();
    let last = own().map(|one| one.finished_at).max();
    match (first, last) {
        (Some(first), Some(last)) => last.duration_since(first).max(SignedDuration::ZERO),
        _ => SignedDuration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use base::clock::Clock;
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn start_is_recorded_once_without_pulls_and_init_containers() {
        let metrics = KubeletMetrics::new(&Clock::system()).expect("new names");
        let pod: Pod = from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
        }))
        .expect("a pod");
        let status: PodStatus = from_value(json!({
            "phase": "Running",
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}}}],
        }))
        .expect("a status");
        let at = |seconds: i64| Timestamp::from_second(1_767_225_600 + seconds).expect("a time");
        let mut observed = ObservedPod::default();
        observed.containers.push(crate::lifecycle::ObservedContainer {
            name: "i".into(),
            started_at: at(1),
            finished_at: at(4),
            ..crate::lifecycle::ObservedContainer::default()
        });
        let mut startup = Startup::new(false);
        startup.pulled(Duration::from_secs(5));
        let pending = PodStatus { phase: Some("Pending".into()), ..PodStatus::default() };
        startup.record(&pod, &pending, &observed, &metrics, at(9));
        assert_eq!(
            (metrics.pod_start.get_sample_count(), metrics.pod_start_total.get_sample_count()),
            (0, 0)
        );
        for _ in 0..2 {
            startup.record(&pod, &status, &observed, &metrics, at(10));
        }
        assert_eq!(
            (metrics.pod_start.get_sample_count(), metrics.pod_start_total.get_sample_count()),
            (1, 1)
        );
        assert_eq!(metrics.pod_start_total.get_sample_sum(), 10.0);
        assert_eq!(metrics.pod_start_sli.get_sample_sum(), 2.0);

        let mut before = Startup::new(true);
        before.record(&pod, &status, &observed, &metrics, at(10));
        assert_eq!(metrics.pod_start_total.get_sample_count(), 1, "it ran before this kubelet");
    }
}
