//! Computes the next actions for a pod from its spec and observed state: sandboxes and containers to create and kill.

use std::collections::BTreeMap;

use jiff::Timestamp;
use objects::core::v1::{Container, Pod};

use super::backoff::Backoff;
use super::members::{Member, MemberKind, members};
use super::observed::{ObservedContainer, ObservedPod, ObservedSandbox, RunState};
use super::restart;

/// Probe results of a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Reason to kill it: liveness or startup probe failed.
    pub failed: Option<KillReason>,
    /// The startup probe has succeeded, or there is none.
    pub started: bool,
    pub ready: bool,
}

/// Probe results by container ID.
pub type ProbeView<'a> = &'a dyn Fn(&str) -> Verdict;

/// Reason to kill a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    LivenessFailed,
    StartupFailed,
    SpecChanged,
    /// Created but never started, because the kubelet stopped in between. It is removed without an event.
    NeverRan,
    /// The runtime does not know its state.
    Unknown,
    /// The pod terminates, or its sandbox is replaced.
    PodEnds,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    pub reason: KillReason,
    pub message: String,
}

#[derive(Clone, Debug)]
pub struct Start {
    pub member: Member,
    /// Number of earlier containers of this name.
    pub restarts: u32,
    /// Finish time of the previous container, the start of the next backoff.
    pub ended_at: Option<Timestamp>,
}

/// A container removed by RestartAllContainers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    pub id: String,
    pub name: String,
    pub running: bool,
}

/// Next actions for a pod, in this order: kill, replace the sandbox, start.
#[derive(Clone, Debug, Default)]
pub struct PodPlan {
    /// Kill all containers and sandboxes: the pod is finished, or its sandbox is replaced.
    pub kill_pod: bool,
    /// Create a sandbox with this attempt number.
    pub create_sandbox: Option<u32>,
    pub kill: Vec<Kill>,
    /// Containers to remove, in this order; no other action is taken then.
    pub reset: Vec<Reset>,
    pub start: Vec<Start>,
    /// Containers in restart backoff, with their message.
    pub backing_off: BTreeMap<String, String>,
    /// Time of the next sync even without changes.
    pub wake_at: Option<Timestamp>,
}

impl PodPlan {
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.kill_pod
            && self.create_sandbox.is_none()
            && self.kill.is_empty()
            && self.reset.is_empty()
            && self.start.is_empty()
    }

    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |old| old.min(at)));
    }
}

struct Planner<'a> {
    pod: &'a Pod,
    observed: &'a ObservedPod,
    probes: ProbeView<'a>,
    backoff: &'a Backoff,
    hash: &'a dyn Fn(&Container) -> String,
    now: Timestamp,
    plan: PodPlan,
}

/// Returns whether the pod needs a new sandbox, and its attempt number.
#[must_use]
pub fn sandbox_needed(pod: &Pod, observed: &ObservedPod) -> Option<u32> {
    let Some(newest) = observed.sandbox() else { return Some(0) };
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    let ready = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    let usable = |sandbox: &ObservedSandbox| {
        sandbox.ready && sandbox.host_network == host_network && (host_network || !sandbox.ips.is_empty())
    };
    (ready > 1 || !usable(newest)).then(|| newest.attempt.saturating_add(1))
}

/// Next actions for a pod that should run. `hash` covers the immutable fields of a running container.
#[must_use]
pub fn plan(
    pod: &Pod,
    observed: &ObservedPod,
    probes: ProbeView<'_>,
    backoff: &Backoff,
    hash: &dyn Fn(&Container) -> String,
    now: Timestamp,
) -> PodPlan {
    let mut planner = Planner { pod, observed, probes, backoff, hash, now, plan: PodPlan::default() };
    let Some(spec) = &pod.spec else { return planner.plan };
    let all = members(spec);
    planner.plan.reset = resets(&all, observed);
    if !planner.plan.reset.is_empty() {
        return planner.plan;
    }
    match sandbox_needed(pod, observed) {
        Some(attempt) => planner.plan_new_sandbox(attempt, &all),
        None => planner.plan_existing_sandbox(&all),
    }
    planner.plan
}

/// Containers to remove if one exited with a RestartAllContainers rule: all but ephemeral ones. The triggering ones
/// are removed last, since they carry the decision across kubelet restarts.
fn resets(all: &[Member], observed: &ObservedPod) -> Vec<Reset> {
    let requests_restart = |member: &Member, seen: &ObservedContainer| {
        seen.state == RunState::Exited && restart::restarts_all(&member.container, seen.exit_code)
    };
    let own: Vec<&Member> = all.iter().filter(|member| member.kind != MemberKind::Ephemeral).collect();
    let requested = own.iter().any(|member| {
        observed.container(member.name()).is_some_and(|newest| requests_restart(member, newest))
    });
    if !requested {
        return Vec::new();
    }
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for member in own.into_iter().rev() {
        for seen in observed.containers.iter().filter(|seen| seen.name == member.name()) {
            let running = seen.state != RunState::Exited;
            let reset = Reset { id: seen.id.clone(), name: seen.name.clone(), running };
            if requests_restart(member, seen) { last.push(reset) } else { first.push(reset) }
        }
    }
    first.extend(last);
    first
}

impl Planner<'_> {
    /// Plans a restart from scratch, without a usable sandbox.
    fn plan_new_sandbox(&mut self, attempt: u32, all: &[Member]) {
        let leftovers = !self.observed.sandboxes.is_empty() || self.observed.running().next().is_some();
        self.plan.kill_pod = leftovers && !self.observed.is_quiet();
        let never = self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("Never");
        if never && attempt != 0 && !self.observed.containers.is_empty() {
            return;
        }
        let due: Vec<&Member> = all
            .iter()
            .filter(|member| member.kind == MemberKind::App)
            .filter(|member| {
                let newest = self.observed.container(member.name());
                // A container that was still running was lost with its sandbox.
                newest.is_none_or(|newest| newest.state == RunState::Running)
                    || restart::is_due(self.pod, &member.container, newest)
            })
            .collect();
        if due.is_empty() {
            return;
        }
        self.plan.create_sandbox = Some(attempt);
        match all.iter().find(|member| matches!(member.kind, MemberKind::Init | MemberKind::Sidecar)) {
            Some(first) => self.start(first),
            None => due.into_iter().for_each(|member| self.start(member)),
        }
    }

    fn plan_existing_sandbox(&mut self, all: &[Member]) {
        let of = |kind: fn(MemberKind) -> bool| all.iter().filter(move |member| kind(member.kind));
        for member in of(|kind| kind == MemberKind::Ephemeral) {
            if self.observed.container(member.name()).is_none() {
                self.start(member);
            }
        }
        let apps: Vec<&Member> = of(|kind| kind == MemberKind::App).collect();
        let initial: Vec<&Member> =
            of(|kind| matches!(kind, MemberKind::Init | MemberKind::Sidecar)).collect();
        let began = apps.iter().any(|member| self.in_this_sandbox(member.name()).is_some());
        let initialised = if began { true } else { self.initialise(&initial) };
        if !initialised {
            return;
        }
        let mut alive = 0;
        for member in &apps {
            alive += usize::from(self.keep_running(member));
        }
        if alive == 0 {
            // All regular containers are done permanently; sidecars and the sandbox are stopped with them.
            self.plan.start.retain(|start| start.member.kind == MemberKind::Ephemeral);
            self.plan.kill_pod = !self.observed.is_quiet();
            if self.plan.kill_pod {
                self.plan.start.clear();
            }
            return;
        }
        if began {
            for member in initial.iter().filter(|member| member.kind == MemberKind::Sidecar) {
                self.keep_running(member);
            }
        }
    }

    /// Walks init containers and sidecars in order; true once all are done or started.
    fn initialise(&mut self, initial: &[&Member]) -> bool {
        for member in initial {
            let Some(newest) = self.in_this_sandbox(member.name()) else {
                self.start(member);
                return false;
            };
            let sidecar = member.kind == MemberKind::Sidecar;
            match newest.state {
                RunState::Running => {
                    let verdict = (self.probes)(&newest.id);
                    if let Some(reason) = verdict.failed {
                        let newest = newest.clone();
                        self.kill(member, &newest, reason);
                        return false;
                    }
                    if !(sidecar && verdict.started) {
                        return false;
                    }
                }
                RunState::Exited if !sidecar && newest.exit_code == 0 => {}
                RunState::Exited
                    if sidecar || restart::on_exit(self.pod, &member.container, newest.exit_code) =>
                {
                    self.start_after_backoff(member);
                    return false;
                }
                RunState::Exited => {
                    // The pod has failed; nothing else starts.
                    self.plan.kill_pod = !self.observed.is_quiet();
                    return false;
                }
                RunState::Created | RunState::Unknown => {
                    let newest = newest.clone();
                    self.kill(member, &newest, unknown_state_reason(newest.state));
                    self.start(member);
                    return false;
                }
            }
        }
        true
    }

    /// Keeps a regular container or sidecar running; false if it is done permanently.
    fn keep_running(&mut self, member: &Member) -> bool {
        let newest = self.in_this_sandbox(member.name()).cloned();
        let Some(newest) = newest else {
            let before = self.observed.container(member.name());
            let lost_while_running = before.is_some_and(|before| before.state == RunState::Running);
            let due = lost_while_running || restart::is_due(self.pod, &member.container, before);
            if due {
                self.start_after_backoff(member);
            }
            return due;
        };
        match newest.state {
            RunState::Running => {
                let verdict = (self.probes)(&newest.id);
                if !newest.hash.is_empty() && newest.hash != (self.hash)(&member.container) {
                    self.kill(member, &newest, KillReason::SpecChanged);
                    self.start(member);
                } else if let Some(reason) = verdict.failed {
                    self.kill(member, &newest, reason);
                    // Restarted after its exit according to the restart policy, as after any other exit.
                }
                true
            }
            RunState::Exited => {
                let due = member.kind == MemberKind::Sidecar
                    || restart::on_exit(self.pod, &member.container, newest.exit_code);
                if due {
                    self.start_after_backoff(member);
                }
                due
            }
            RunState::Created | RunState::Unknown => {
                self.kill(member, &newest, unknown_state_reason(newest.state));
                self.start(member);
                true
            }
        }
    }

    fn in_this_sandbox(&self, name: &str) -> Option<&ObservedContainer> {
        let sandbox = self.observed.sandbox()?;
        self.observed.container(name).filter(|container| container.sandbox == sandbox.id)
    }

    fn start_after_backoff(&mut self, member: &Member) {
        let ended = self
            .observed
            .container(member.name())
            .filter(|newest| newest.state == RunState::Exited)
            .map(|newest| newest.finished_at);
        let until = ended.and_then(|ended| self.backoff.until(member.name(), ended, self.now));
        match until {
            None => self.start(member),
            Some(until) => {
                let pod = &self.pod.metadata;
                let message = format!(
                    "back-off {} restarting failed container={} pod={}_{}({})",
                    go_duration(self.backoff.wait(member.name()).as_secs()),
                    member.name(),
                    pod.name.as_deref().unwrap_or(""),
                    pod.namespace.as_deref().unwrap_or(""),
                    pod.uid.as_deref().unwrap_or(""),
                );
                self.plan.backing_off.insert(member.name().to_owned(), message);
                self.plan.wake(until);
            }
        }
    }

    fn start(&mut self, member: &Member) {
        let before = self.observed.container(member.name());
        self.plan.start.push(Start {
            restarts: before.map_or(0, |before| match before.state {
                RunState::Created => before.restarts,
                _ => before.restarts.saturating_add(1),
            }),
            ended_at: before
                .filter(|before| before.state == RunState::Exited)
                .map(|before| before.finished_at),
            member: member.clone(),
        });
    }

    fn kill(&mut self, member: &Member, container: &ObservedContainer, reason: KillReason) {
        let name = member.name();
        let will = match restart::policy(self.pod, &member.container) {
            "Never" => "",
            _ => ", will be restarted",
        };
        let message = match reason {
            KillReason::LivenessFailed => format!("Container {name} failed liveness probe{will}"),
            KillReason::StartupFailed => format!("Container {name} failed startup probe{will}"),
            KillReason::SpecChanged => format!("Container {name} definition changed{will}"),
            KillReason::NeverRan | KillReason::Unknown => {
                format!("Container is in {:?} state, try killing it before restart", container.state)
            }
            KillReason::PodEnds => format!("Stopping container {name}"),
        };
        self.plan.kill.push(Kill { id: container.id.clone(), name: name.to_owned(), reason, message });
    }
}

/// Reason to kill a container that is neither running nor exited.
fn unknown_state_reason(state: RunState) -> KillReason {
    if state == RunState::Created { KillReason::NeverRan } else { KillReason::Unknown }
}

/// Formats seconds like Go durations: `10s`, `2m40s`, `5m0s`.
#[must_use]
pub fn go_duration(seconds: i64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
