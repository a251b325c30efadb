//! API status of a pod, from its spec and observed state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use objects::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, ContainerUser, HostIP, LinuxContainerUser, Pod, PodCondition, PodIP, PodStatus,
    ResourceRequirements, VolumeMount, VolumeMountStatus,
};
use objects::meta::v1::Time;

use super::conditions::{ALL_RESTARTING, BY_KUBELET, DISRUPTION, OWNED, conditions, has_run};
use super::members::{as_container, is_sidecar};
use super::observed::{ObservedContainer, ObservedPod, RunState};
use super::phase::{find, phase};
use super::plan::{ProbeView, sandbox_needed};
use super::{qos, restart};
use crate::volumes::is_recursive;

/// Waiting state of a container that should run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

/// Inputs of the status besides the pod and its containers.
pub struct StatusContext<'a> {
    /// Name of the runtime, the scheme of container IDs.
    pub runtime: &'a str,
    pub host_ips: &'a [String],
    pub probes: ProbeView<'a>,
    /// By container name.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// Nothing of the pod will be started any more.
    pub terminal: bool,
    /// Reason and message of a pod that was rejected, evicted or exceeded its deadline.
    pub verdict: Option<&'a (String, String)>,
    /// Reason and message of a pending resize.
    pub resize: Option<&'a (String, String)>,
    /// Set while a resize is in progress, with its error if any.
    pub resizing: Option<&'a Option<String>>,
    /// Effective resources of a running container, by ID.
    pub in_effect: &'a dyn Fn(&str) -> Option<ResourceRequirements>,
    /// True if the runtime supports recursive read-only mounts.
    pub recursive_read_only: bool,
    pub now: Timestamp,
}

/// Time truncated to whole seconds, the precision of the API.
#[must_use]
pub fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// Builds the status of a pod.
#[must_use]
pub fn status(pod: &Pod, observed: &ObservedPod, context: &StatusContext<'_>) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    let Some(spec) = &pod.spec else { return old };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let ephemeral: Vec<Container> = spec.ephemeral_containers.iter().flatten().map(as_container).collect();
    let builder = StatusBuilder { pod, observed, context, has_init: !init.is_empty() };
    let init_statuses = builder.statuses(init, old.init_container_statuses.as_deref(), true);
    let app_statuses = builder.statuses(&spec.containers, old.container_statuses.as_deref(), false);
    let ephemeral_statuses = builder.statuses(&ephemeral, old.ephemeral_container_statuses.as_deref(), false);

    let all: Vec<ContainerStatus> = init_statuses.iter().chain(&app_statuses).cloned().collect();
    let initialised = app_statuses.iter().any(has_run);
    let before = old.phase.as_deref().unwrap_or("Pending");
    let phase = match (before, context.verdict) {
        // A terminal phase never changes.
        ("Succeeded" | "Failed", _) => before,
        (_, Some(_)) => "Failed",
        _ => phase(pod, &all, context.terminal, initialised),
    };
    let now = seconds(context.now);
    let sandbox_is_up = sandbox_needed(pod, observed).is_none();
    let restarting = restart::may_restart_all(pod).then(|| builder.exited_with_restart_all());
    let mut list = conditions(pod, &all, phase, sandbox_is_up, restarting, &now);
    let foreign =
        old.conditions.iter().flatten().filter(|condition| !OWNED.contains(&condition.type_.as_str()));
    list.extend(foreign.cloned());
    let pending = context.resize.map(|(reason, message)| (Some(reason.clone()), Some(message.clone())));
    list.extend(pending.map(|reported| resize("PodResizePending", reported, pod, &old, &now)));
    let progress = context.resizing.map(|wrong| (wrong.as_ref().map(|_| "Error".to_owned()), wrong.clone()));
    list.extend(progress.map(|reported| resize("PodResizeInProgress", reported, pod, &old, &now)));
    list.extend(disruption(context, &list, &now));

    let ips = observed.sandbox().map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
    let host_network = spec.host_network.unwrap_or(false);
    let ips = if host_network && sandbox_is_up { context.host_ips.to_vec() } else { ips };
    let pod_ips = if ips.is_empty() {
        old.pod_ips.clone().filter(|_| observed.sandbox().is_some())
    } else {
        Some(ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect::<Vec<_>>())
    };
    let some = |list: Vec<ContainerStatus>| (!list.is_empty()).then_some(list);
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(list),
        message: context.verdict.map(|verdict| verdict.1.clone()).or(old.message),
        reason: context.verdict.map(|verdict| verdict.0.clone()).or(old.reason),
        host_ip: context.host_ips.first().cloned(),
        host_ips: Some(context.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: pod_ips.as_ref().and_then(|ips| ips.first()).map(|ip| ip.ip.clone()),
        pod_ips,
        start_time: old.start_time.or(Some(now)),
        init_container_statuses: some(init_statuses),
        container_statuses: some(app_statuses),
        ephemeral_container_statuses: some(ephemeral_statuses),
        qos_class: Some(qos::class(pod).name().to_owned()),
        observed_generation: pod.metadata.generation,
        ..old
    }
}

/// Condition of an unfinished resize.
fn resize(
    name: &str,
    (reason, message): (Option<String>, Option<String>),
    pod: &Pod,
    old: &PodStatus,
    now: &Time,
) -> PodCondition {
    let before = old.conditions.iter().flatten().find(|condition| condition.type_ == name);
    PodCondition {
        type_: name.to_owned(),
        status: "True".to_owned(),
        reason,
        message,
        last_transition_time: before
            .and_then(|b| b.last_transition_time.clone())
            .or_else(|| Some(now.clone())),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    }
}

/// Returns true if the node terminated the pod, which counts as a disruption.
fn disruption(context: &StatusContext<'_>, list: &[PodCondition], now: &Time) -> Option<PodCondition> {
    let (reason, message) = context.verdict?;
    if !matches!(reason.as_str(), "Evicted" | "Terminated") || list.iter().any(|c| c.type_ == DISRUPTION) {
        return None;
    }
    Some(PodCondition {
        type_: DISRUPTION.to_owned(),
        status: "True".to_owned(),
        reason: Some(BY_KUBELET.to_owned()),
        message: Some(message.clone()),
        last_transition_time: Some(now.clone()),
        ..PodCondition::default()
    })
}

struct StatusBuilder<'a> {
    pod: &'a Pod,
    observed: &'a ObservedPod,
    context: &'a StatusContext<'a>,
    has_init: bool,
}

impl StatusBuilder<'_> {
    fn statuses(
        &self,
        containers: &[Container],
        old: Option<&[ContainerStatus]>,
        init: bool,
    ) -> Vec<ContainerStatus> {
        let old = old.unwrap_or_default();
        containers.iter().map(|container| self.one(container, find(old, &container.name), init)).collect()
    }

    fn one(&self, container: &Container, old: Option<&ContainerStatus>, init: bool) -> ContainerStatus {
        let name = &container.name;
        let newest = self.observed.container(name);
        let mut status = match newest {
            Some(newest) => self.seen(container, newest, old),
            None => self.unseen(container, old, init),
        };
        if let Some(previous) = self.observed.previous(name) {
            status.last_state = Some(self.state(previous, None));
        }
        let done = init && newest.is_some_and(ObservedContainer::succeeded) && !is_sidecar(container);
        if !done
            && restart::is_due(self.pod, container, newest)
            && !self.context.terminal
            && let Some(waiting) = self.context.waiting.get(name)
        {
            if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
                status.last_state = status.state.take();
            }
            status.state = Some(wait(&waiting.reason, Some(waiting.message.clone())));
        }
        self.readiness(&mut status, container, newest, init);
        status
    }

    /// Readiness and start by probe results, and completion for init containers.
    fn readiness(
        &self,
        status: &mut ContainerStatus,
        container: &Container,
        newest: Option<&ObservedContainer>,
        init: bool,
    ) {
        let running = newest.filter(|newest| newest.state == RunState::Running);
        if init && !is_sidecar(container) {
            let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
            status.ready = ended.is_some_and(|ended| ended.exit_code == 0);
            status.started = Some(running.is_some() && container.startup_probe.is_none());
            return;
        }
        let verdict = running.map(|running| (self.context.probes)(&running.id));
        status.started = Some(verdict.is_some_and(|verdict| verdict.started));
        status.ready = verdict.is_some_and(|verdict| verdict.started && verdict.ready);
    }

    fn seen(
        &self,
        container: &Container,
        newest: &ObservedContainer,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let submitted = container.resources.clone();
        let resources = (self.context.in_effect)(&newest.id).or_else(|| submitted.clone());
        ContainerStatus {
            name: newest.name.clone(),
            image: if newest.image.is_empty() {
                container.image.clone().unwrap_or_default()
            } else {
                newest.image.clone()
            },
            image_id: newest.image_id.clone(),
            container_id: Some(self.id(newest)),
            restart_count: i32::try_from(newest.restarts).unwrap_or(i32::MAX),
            state: Some(self.state(newest, old)),
            last_state: old.and_then(|old| old.last_state.clone()),
            allocated_resources: submitted.and_then(|submitted| submitted.requests),
            resources,
            user: newest.user.clone().map(|(uid, gid, groups)| ContainerUser {
                linux: Some(LinuxContainerUser { uid, gid, supplemental_groups: Some(groups) }),
            }),
            volume_mounts: self.mounts(container),
            stop_signal: newest.stop_signal.clone(),
            ..ContainerStatus::default()
        }
    }

    fn unseen(&self, container: &Container, old: Option<&ContainerStatus>, init: bool) -> ContainerStatus {
        let reason = if self.has_init { "PodInitializing" } else { "ContainerCreating" };
        let mut status = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            state: Some(wait(reason, None)),
            volume_mounts: self.mounts(container),
            ..ContainerStatus::default()
        };
        let initialised =
            self.pod.spec.as_ref().is_some_and(|spec| {
                spec.containers.iter().any(|c| self.observed.container(&c.name).is_some())
            });
        if let Some(old) = old {
            if self.all_restart() && old.state.as_ref().is_some_and(|state| state.waiting.is_none()) {
                return ContainerStatus {
                    restart_count: old.restart_count.saturating_add(1),
                    state: Some(wait(restart::RESTARTING_ALL, Some(REMOVED.to_owned()))),
                    last_state: Some(ended(restart::RESTARTING_ALL, REMOVED)),
                    ..status
                };
            }
            if old.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
                return old.clone();
            }
            status.restart_count = old.restart_count;
            status.last_state.clone_from(&old.last_state);
            let ran = old.state.as_ref().is_some_and(|state| state.running.is_some());
            let reported = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
            if ran && !reported {
                // It was running and has disappeared: terminated with unknown exit code.
                status.last_state = Some(ended("ContainerStatusUnknown", LOST));
                if self.pod.metadata.deletion_timestamp.is_none() {
                    status.restart_count += 1;
                }
            }
        }
        if init && initialised && !is_sidecar(container) {
            status.state = Some(ContainerState {
                terminated: Some(ContainerStateTerminated {
                    reason: Some("Completed".to_owned()),
                    message: Some("Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally".to_owned()),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            });
        }
        status
    }

    fn state(&self, container: &ObservedContainer, old: Option<&ContainerStatus>) -> ContainerState {
        let ran = old.and_then(|old| old.state.as_ref()).is_some_and(|state| state.running.is_some());
        match container.state {
            RunState::Running => ContainerState {
                running: Some(ContainerStateRunning { started_at: Some(seconds(container.started_at)) }),
                ..ContainerState::default()
            },
            RunState::Exited => {
                let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
                ContainerState {
                    terminated: Some(ContainerStateTerminated {
                        exit_code: container.exit_code,
                        reason: text(&container.reason),
                        message: text(&container.message),
                        started_at: Some(seconds(container.started_at)),
                        finished_at: Some(seconds(container.finished_at)),
                        container_id: Some(self.id(container)),
                        signal: None,
                    }),
                    ..ContainerState::default()
                }
            }
            RunState::Unknown if ran => ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: 137,
                    reason: Some("ContainerStatusUnknown".to_owned()),
                    message: Some(
                        "The container could not be located when the pod was terminated".to_owned(),
                    ),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            },
            RunState::Created | RunState::Unknown => ContainerState {
                waiting: Some(ContainerStateWaiting::default()),
                ..ContainerState::default()
            },
        }
    }

    /// Returns true if a container exited with a RestartAllContainers rule.
    fn exited_with_restart_all(&self) -> bool {
        let spec = self.pod.spec.iter();
        let all = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        all.into_iter().any(|container| {
            self.observed.container(&container.name).is_some_and(|newest| {
                newest.state == RunState::Exited && restart::restarts_all(container, newest.exit_code)
            })
        })
    }

    /// Returns true if missing containers were removed by RestartAllContainers.
    fn all_restart(&self) -> bool {
        let old = self.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        old.into_iter().any(|one| one.type_ == ALL_RESTARTING && one.status == "True")
    }

    fn mounts(&self, container: &Container) -> Option<Vec<VolumeMountStatus>> {
        let mode = |mount: &VolumeMount| {
            let recursive = is_recursive(mount, self.context.recursive_read_only);
            if recursive { "Enabled" } else { "Disabled" }.to_owned()
        };
        let mounts = container.volume_mounts.as_ref()?.iter();
        let reported = mounts.map(|mount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: (mount.read_only == Some(true)).then(|| mode(mount)),
            ..VolumeMountStatus::default()
        });
        Some(reported.collect())
    }

    fn id(&self, container: &ObservedContainer) -> String {
        format!("{}://{}", self.context.runtime, container.id)
    }
}

fn wait(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: message.filter(|message| !message.is_empty()),
        }),
        ..ContainerState::default()
    }
}

const LOST: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
const REMOVED: &str = "The container is removed because RestartAllContainers in place";

/// State of a container whose exit was not observed.
fn ended(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
