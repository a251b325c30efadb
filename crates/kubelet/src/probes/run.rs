//! Runs the probes of a pod's containers, each on its own schedule.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::clock::Clock;
use base::tasks::TaskGroup;
use jiff::Timestamp;
use objects::core::v1::{Container, Pod, Probe};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::check::{ProbeOutcome, Target, check};
use super::tally::{Counted, Tally};
use crate::events::{Kind, Recorder};
use crate::lifecycle::{KillReason, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// Probe results in the published status of a container; all false for a new container.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeResults {
    pub started: bool,
    pub ready: bool,
}

impl ProbeResults {
    /// State of the probes before their first run. A container that was ready before the kubelet restarted stays ready
    /// until its probe fails.
    fn verdict(self, container: &Container) -> Verdict {
        Verdict {
            failed: None,
            started: container.startup_probe.is_none() || self.started,
            ready: container.readiness_probe.is_none() || self.ready,
        }
    }
}

/// Probe state of one container.
#[derive(Debug)]
struct ProbeState {
    verdict: Mutex<Verdict>,
    /// Notified when the container has started; `changed` wakes the pod's worker.
    started: Notify,
    changed: Arc<Notify>,
}

struct ContainerProbes {
    state: Arc<ProbeState>,
    tasks: Vec<(ProbeKind, JoinHandle<()>)>,
}

impl Drop for ContainerProbes {
    fn drop(&mut self) {
        for (_, task) in &self.tasks {
            task.abort();
        }
    }
}

/// Probes of one pod. Dropping it aborts them.
pub struct ProbeSet {
    probed: HashMap<String, ContainerProbes>,
    changed: Arc<Notify>,
    tasks: TaskGroup,
    recorder: Recorder,
    clock: Clock,
    tally: Arc<Tally>,
}

impl ProbeSet {
    #[must_use]
    pub fn new(
        changed: Arc<Notify>,
        tasks: TaskGroup,
        recorder: Recorder,
        clock: Clock,
        tally: Arc<Tally>,
    ) -> Self {
        Self { probed: HashMap::new(), changed, tasks, recorder, clock, tally }
    }

    /// Probe results of a running container; without probes it is started and ready.
    #[must_use]
    pub fn verdict(&self, container_id: &str) -> Verdict {
        self.probed.get(container_id).map_or(Verdict { failed: None, started: true, ready: true }, |probed| {
            *probed.state.verdict.lock()
        })
    }

    #[must_use]
    pub fn contains(&self, container_id: &str) -> bool {
        self.probed.contains_key(container_id)
    }

    /// Removes containers that are no longer running.
    pub fn retain(&mut self, running: impl Fn(&str) -> bool) {
        self.probed.retain(|id, _| running(id));
    }

    /// Stops liveness and startup probes of a terminating pod.
    pub fn stop_liveness(&mut self) {
        for probed in self.probed.values_mut() {
            probed.state.verdict.lock().failed = None;
            probed.tasks.retain(|(probe_type, task)| {
                let keep = *probe_type == ProbeKind::Readiness;
                if !keep {
                    task.abort();
                }
                keep
            });
        }
    }

    /// Starts probing a container that has been running since `started_at`. `published`: its results before the
    /// kubelet restarted.
    pub fn add(&mut self, pod: &Arc<Pod>, target: Target, started_at: Timestamp, published: ProbeResults) {
        let container = &target.container;
        let verdict = published.verdict(container);
        let startup = container.startup_probe.clone().filter(|_| !verdict.started);
        let state = Arc::new(ProbeState {
            verdict: Mutex::new(verdict),
            started: Notify::new(),
            changed: Arc::clone(&self.changed),
        });
        let probes = [
            (ProbeKind::Startup, startup),
            (ProbeKind::Liveness, container.liveness_probe.clone()),
            (ProbeKind::Readiness, container.readiness_probe.clone()),
        ];
        let mut tasks = Vec::new();
        for (probe_type, probe) in probes {
            let Some(probe) = probe else { continue };
            let runner = ProbeRunner {
                probe_type,
                probe,
                target: target.clone(),
                state: Arc::clone(&state),
                pod: Arc::clone(pod),
                recorder: self.recorder.clone(),
                tally: Arc::clone(&self.tally),
            };
            let delay = self.initial_delay(&runner.probe, started_at);
            tasks.push((probe_type, self.tasks.spawn(runner.run(delay))));
        }
        self.probed.insert(target.container_id, ContainerProbes { state, tasks });
    }

    fn initial_delay(&self, probe: &Probe, started_at: Timestamp) -> Duration {
        let delay = i64::from(probe.initial_delay_seconds.unwrap_or(0));
        let due = started_at.saturating_add(jiff::SignedDuration::from_secs(delay)).unwrap_or(started_at);
        Duration::try_from(due.duration_since(self.clock.now())).unwrap_or(Duration::ZERO)
    }
}

struct ProbeRunner {
    probe_type: ProbeKind,
    probe: Probe,
    target: Target,
    state: Arc<ProbeState>,
    pod: Arc<Pod>,
    recorder: Recorder,
    tally: Arc<Tally>,
}

impl ProbeRunner {
    async fn run(self, delay: Duration) {
        let period = u64::try_from(self.probe.period_seconds.unwrap_or(10)).unwrap_or(10).max(1);
        let period = Duration::from_secs(period);
        let needed = |wanted: Option<i32>, default: i32| wanted.unwrap_or(default).max(1);
        let (successes, failures) =
            (needed(self.probe.success_threshold, 1), needed(self.probe.failure_threshold, 3));
        if self.probe_type != ProbeKind::Startup {
            self.wait_until_started().await;
        }
        tokio::time::sleep(delay).await;
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut last, mut run) = (None, 0);
        loop {
            ticks.tick().await;
            let begun = Instant::now();
            let outcome = check(&self.probe, &self.target).await;
            let good = !matches!(outcome, ProbeOutcome::Failure(_));
            self.count(good, begun.elapsed());
            let event = match &outcome {
                ProbeOutcome::Success => None,
                ProbeOutcome::Warning(text) => Some(("ProbeWarning", "warning", text)),
                ProbeOutcome::Failure(text) => Some(("Unhealthy", "failed", text)),
            };
            if let Some((reason, what, text)) = event {
                let message = format!("{} probe {what}: {text}", self.probe_type.name());
                let name = &self.target.container.name;
                self.recorder.container(&self.pod, name, Kind::Warning, reason, message);
            }
            run = if last == Some(good) { run + 1 } else { 1 };
            last = Some(good);
            let enough = if good { run >= successes } else { run >= failures };
            if enough && self.conclude(good) {
                return;
            }
        }
    }

    fn count(&self, good: bool, took: Duration) {
        let (meta, text) = (&self.pod.metadata, |text: &Option<String>| text.clone().unwrap_or_default());
        let answer = Counted {
            namespace: text(&meta.namespace),
            pod: text(&meta.name),
            uid: text(&meta.uid),
            container: self.target.container.name.clone(),
            probe_type: self.probe_type.name(),
            good,
        };
        self.tally.count(answer, took);
    }

    async fn wait_until_started(&self) {
        loop {
            let started_signal = self.state.started.notified();
            if self.state.verdict.lock().started {
                return;
            }
            started_signal.await;
        }
    }

    /// Records the result; true if the probe is finished.
    fn conclude(&self, good: bool) -> bool {
        let mut verdict = self.state.verdict.lock();
        let before = *verdict;
        let done = match (self.probe_type, good) {
            (ProbeKind::Startup, true) => {
                verdict.started = true;
                true
            }
            (ProbeKind::Startup, false) => {
                verdict.failed = Some(KillReason::StartupFailed);
                true
            }
            (ProbeKind::Liveness, true) => false,
            (ProbeKind::Liveness, false) => {
                verdict.failed = Some(KillReason::LivenessFailed);
                true
            }
            (ProbeKind::Readiness, _) => {
                verdict.ready = good;
                false
            }
        };
        let changed = *verdict != before;
        let started = verdict.started && !before.started;
        drop(verdict);
        if started {
            self.state.started.notify_waiters();
        }
        if changed {
            self.state.changed.notify_one();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_results_apply_until_the_first_probe() {
        let probed = Container {
            startup_probe: Some(Probe::default()),
            readiness_probe: Some(Probe::default()),
            ..Container::default()
        };
        let verdict = |started, ready| {
            let verdict = ProbeResults { started, ready }.verdict(&probed);
            (verdict.started, verdict.ready)
        };
        assert_eq!(verdict(false, false), (false, false), "a new container");
        assert_eq!(verdict(true, true), (true, true), "after a restart of the kubelet");
        assert_eq!(verdict(true, false), (true, false));
        let verdict = ProbeResults::default().verdict(&Container::default());
        assert!(verdict.started && verdict.ready, "without probes");
    }
}
