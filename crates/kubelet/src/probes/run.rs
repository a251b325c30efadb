//! The probes of a pod's containers, each asked in its own time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::tasks::TaskGroup;
use jiff::Timestamp;
use objects::core::v1::{Pod, Probe};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::check::{Outcome, Target, check};
use super::tally::{Counted, Tally};
use crate::events::{Kind, Recorder};
use crate::lifecycle::{KillReason, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Startup,
    Liveness,
    Readiness,
}

impl Question {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// What the probes of one container have found.
#[derive(Debug)]
struct Findings {
    verdict: Mutex<Verdict>,
    /// Told when the container has started, and when its pod's worker should look.
    started: Notify,
    changed: Arc<Notify>,
}

struct Asked {
    findings: Arc<Findings>,
    tasks: Vec<(Question, JoinHandle<()>)>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        for (_, task) in &self.tasks {
            task.abort();
        }
    }
}

/// The probes of one pod. Dropping it ends them.
pub struct ProbeSet {
    asked: HashMap<String, Asked>,
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
        Self { asked: HashMap::new(), changed, tasks, recorder, clock, tally }
    }

    /// What is known of a running container; without probes it has started and is ready.
    #[must_use]
    pub fn verdict(&self, container_id: &str) -> Verdict {
        self.asked.get(container_id).map_or(Verdict { failed: None, started: true, ready: true }, |asked| {
            *asked.findings.verdict.lock()
        })
    }

    #[must_use]
    pub fn knows(&self, container_id: &str) -> bool {
        self.asked.contains_key(container_id)
    }

    /// Forgets containers that do not run any more.
    pub fn retain(&mut self, running: impl Fn(&str) -> bool) {
        self.asked.retain(|id, _| running(id));
    }

    /// A pod that ends is not asked whether it lives.
    pub fn stop_liveness(&mut self) {
        for asked in self.asked.values_mut() {
            asked.findings.verdict.lock().failed = None;
            asked.tasks.retain(|(question, task)| {
                let keep = *question == Question::Readiness;
                if !keep {
                    task.abort();
                }
                keep
            });
        }
    }

    /// Begins to ask a container that runs since `started_at`. `was_started`: it had started before the kubelet did.
    pub fn add(&mut self, pod: &Arc<Pod>, target: Target, started_at: Timestamp, was_started: bool) {
        let container = &target.container;
        let startup = container.startup_probe.clone().filter(|_| !was_started);
        let ready = container.readiness_probe.is_none();
        let findings = Arc::new(Findings {
            verdict: Mutex::new(Verdict { failed: None, started: startup.is_none(), ready }),
            started: Notify::new(),
            changed: Arc::clone(&self.changed),
        });
        let probes = [
            (Question::Startup, startup),
            (Question::Liveness, container.liveness_probe.clone()),
            (Question::Readiness, container.readiness_probe.clone()),
        ];
        let mut tasks = Vec::new();
        for (question, probe) in probes {
            let Some(probe) = probe else { continue };
            let asker = Asker {
                question,
                probe,
                target: target.clone(),
                findings: Arc::clone(&findings),
                pod: Arc::clone(pod),
                recorder: self.recorder.clone(),
                tally: Arc::clone(&self.tally),
            };
            let delay = self.initial_delay(&asker.probe, started_at);
            tasks.push((question, self.tasks.spawn(asker.run(delay))));
        }
        self.asked.insert(target.container_id, Asked { findings, tasks });
    }

    fn initial_delay(&self, probe: &Probe, started_at: Timestamp) -> Duration {
        let delay = i64::from(probe.initial_delay_seconds.unwrap_or(0));
        let due = started_at.saturating_add(jiff::SignedDuration::from_secs(delay)).unwrap_or(started_at);
        Duration::try_from(due.duration_since(self.clock.now())).unwrap_or(Duration::ZERO)
    }
}

struct Asker {
    question: Question,
    probe: Probe,
    target: Target,
    findings: Arc<Findings>,
    pod: Arc<Pod>,
    recorder: Recorder,
    tally: Arc<Tally>,
}

impl Asker {
    async fn run(self, delay: Duration) {
        let period = u64::try_from(self.probe.period_seconds.unwrap_or(10)).unwrap_or(10).max(1);
        let period = Duration::from_secs(period);
        let needed = |wanted: Option<i32>, default: i32| wanted.unwrap_or(default).max(1);
        let (successes, failures) =
            (needed(self.probe.success_threshold, 1), needed(self.probe.failure_threshold, 3));
        if self.question != Question::Startup {
            self.wait_until_started().await;
        }
        tokio::time::sleep(delay).await;
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut last, mut run) = (None, 0);
        loop {
            ticks.tick().await;
            let outcome = check(&self.probe, &self.target).await;
            let good = outcome == Outcome::Success;
            self.count(good);
            if let Outcome::Failure(text) = &outcome {
                let message = format!("{} probe failed: {text}", self.question.name());
                let name = &self.target.container.name;
                self.recorder.container(&self.pod, name, Kind::Warning, "Unhealthy", message);
            }
            run = if last == Some(good) { run + 1 } else { 1 };
            last = Some(good);
            let enough = if good { run >= successes } else { run >= failures };
            if enough && self.conclude(good) {
                return;
            }
        }
    }

    fn count(&self, good: bool) {
        let (meta, text) = (&self.pod.metadata, |text: &Option<String>| text.clone().unwrap_or_default());
        self.tally.count(Counted {
            namespace: text(&meta.namespace),
            pod: text(&meta.name),
            uid: text(&meta.uid),
            container: self.target.container.name.clone(),
            question: self.question.name(),
            good,
        });
    }

    async fn wait_until_started(&self) {
        loop {
            let told = self.findings.started.notified();
            if self.findings.verdict.lock().started {
                return;
            }
            told.await;
        }
    }

    /// Notes the result; true if there is nothing left to ask.
    fn conclude(&self, good: bool) -> bool {
        let mut verdict = self.findings.verdict.lock();
        let before = *verdict;
        let done = match (self.question, good) {
            (Question::Startup, true) => {
                verdict.started = true;
                true
            }
            (Question::Startup, false) => {
                verdict.failed = Some(KillReason::StartupFailed);
                true
            }
            (Question::Liveness, true) => false,
            (Question::Liveness, false) => {
                verdict.failed = Some(KillReason::LivenessFailed);
                true
            }
            (Question::Readiness, _) => {
                verdict.ready = good;
                false
            }
        };
        let changed = *verdict != before;
        let started = verdict.started && !before.started;
        drop(verdict);
        if started {
            self.findings.started.notify_waiters();
        }
        if changed {
            self.findings.changed.notify_one();
        }
        done
    }
}
