//! Container termination: preStop hook, stop signal, grace period, SIGKILL; sidecars last.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use objects::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::hooks;
use super::worker::Worker;
use crate::engine::EngineError;
use crate::events::Kind;
use crate::lifecycle::members::{member, members};
use crate::lifecycle::plan::Reset;
use crate::lifecycle::{Kill, KillReason, Member, MemberKind, ObservedPod};
use crate::shared::Shared;

/// Minimum grace period of a container.
const LEAST_GRACE: i64 = 2;

/// Termination progress by container ID, so that a termination restarted with a shorter grace period continues where
/// it was.
#[derive(Debug, Default)]
pub(super) struct KillProgress(Mutex<(BTreeSet<String>, BTreeSet<String>)>);

impl KillProgress {
    /// Returns true on the first call for a container, to emit the event once.
    fn first_notice(&self, id: &str) -> bool {
        self.0.lock().0.insert(id.to_owned())
    }

    /// Returns true if the preStop hook has not finished yet.
    fn hook_pending(&self, id: &str) -> bool {
        !self.0.lock().1.contains(id)
    }

    fn hook_ended(&self, id: &str) {
        self.0.lock().1.insert(id.to_owned());
    }
}

impl Worker {
    /// Kills one container and waits for its exit.
    pub(super) async fn kill_container(&mut self, pod: &Arc<Pod>, kill: &Kill) {
        let of_pod = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let probe = member(pod, &kill.name).and_then(|member| match kill.reason {
            KillReason::LivenessFailed => member.container.liveness_probe,
            KillReason::StartupFailed => member.container.startup_probe,
            _ => None,
        });
        let grace = probe.and_then(|probe| probe.termination_grace_period_seconds).unwrap_or(of_pod);
        let ip = self.pod_ip(pod);
        let request = KillRequest { id: &kill.id, name: &kill.name, message: &kill.message, grace };
        end(&self.shared, &self.kill_progress, pod, &request, &ip, std::future::ready(())).await;
    }

    /// Removes containers one after the other, running ones without grace period; logs are retained.
    pub(super) async fn remove_all(&mut self, pod: &Arc<Pod>, all: &[Reset]) -> Result<(), EngineError> {
        let ip = self.pod_ip(pod);
        for one in all {
            if one.running {
                let request = KillRequest { id: &one.id, name: &one.name, message: "killing", grace: 0 };
                end(&self.shared, &self.kill_progress, pod, &request, &ip, std::future::ready(())).await;
            }
            self.shared.engine.remove_container(&one.id).await?;
        }
        Ok(())
    }

    /// Pod IP, preferably from the last written status: the cache may not have it yet.
    pub(super) fn pod_ip(&self, pod: &Pod) -> String {
        let statuses = self.written.iter().chain(&pod.status);
        statuses.filter_map(|status| status.pod_ip.clone()).next().unwrap_or_default()
    }
}

/// Kills all containers within `grace` seconds, sidecars after the regular ones and in reverse order, then stops the
/// sandboxes. The preStop hooks of sidecars run immediately.
pub(super) async fn kill_all_containers(
    shared: &Shared,
    progress: &KillProgress,
    pod: &Arc<Pod>,
    observed: &ObservedPod,
    ip: &str,
    grace: i64,
) {
    let kill_order = kill_order(pod, observed);
    let done = watch::Sender::new(0_usize);
    let ends = kill_order.iter().enumerate().map(|(at, wave)| {
        let done = &done;
        async move {
            let ends = wave.iter().map(|(id, name)| {
                let message = format!("Stopping container {name}");
                let mut before = done.subscribe();
                async move {
                    let turn = async {
                        let _ = before.wait_for(|done| *done >= at).await;
                    };
                    let request = KillRequest { id, name, message: &message, grace };
                    end(shared, progress, pod, &request, ip, turn).await;
                }
            });
            join_all(ends).await;
            done.send_modify(|done| *done = (*done).max(at + 1));
        }
    });
    join_all(ends).await;
    for sandbox in observed.sandboxes.iter().filter(|sandbox| sandbox.ready) {
        if let Err(error) = shared.engine.stop_sandbox(&sandbox.id).await {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            tracing::warn!(pod = uid, sandbox = sandbox.id, %error, "failed to stop sandbox");
            let text = format!("error killing pod: {error}");
            shared.recorder.pod(pod, Kind::Warning, "FailedKillPod", text);
        }
    }
}

/// Grace period of the pod's own, in seconds.
pub(super) fn own_grace(pod: &Pod) -> i64 {
    pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30)
}

/// Groups of containers killed together, by ID and name: regular ones first, then sidecars in reverse order.
fn kill_order(pod: &Pod, observed: &ObservedPod) -> Vec<Vec<(String, String)>> {
    let all = pod.spec.as_ref().map(members).unwrap_or_default();
    let sidecars: Vec<&str> =
        all.iter().filter(|member| member.kind == MemberKind::Sidecar).map(Member::name).collect();
    let running = |wanted: &dyn Fn(&str) -> bool| -> Vec<(String, String)> {
        let found = observed.running().filter(|container| wanted(&container.name));
        found.map(|container| (container.id.clone(), container.name.clone())).collect()
    };
    let ordinary = running(&|name| !sidecars.contains(&name));
    let rest = sidecars.iter().rev().map(|sidecar| running(&|name| name == *sidecar));
    std::iter::once(ordinary).chain(rest).filter(|wave| !wave.is_empty()).collect()
}

/// Termination of a container within `grace` seconds.
struct KillRequest<'a> {
    id: &'a str,
    name: &'a str,
    message: &'a str,
    grace: i64,
}

/// Kills one container: runs its hook, waits for its turn, stops it; all within its grace period.
async fn end(
    shared: &Shared,
    progress: &KillProgress,
    pod: &Pod,
    request: &KillRequest<'_>,
    pod_ip: &str,
    turn: impl Future<Output = ()>,
) {
    let KillRequest { id, name, message, grace } = *request;
    if progress.first_notice(id) {
        shared.recorder.container(pod, name, Kind::Normal, "Killing", message);
    }
    let begun = Instant::now();
    let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let container = member(pod, name).map(|member| member.container);
    let hook = container
        .as_ref()
        .and_then(|container| container.lifecycle.as_ref())
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let (Some(hook), Some(container), true, true) =
        (hook, &container, grace > 0, progress.hook_pending(id))
    {
        let running = hooks::run(&shared.engine, hook, id, container, pod, pod_ip);
        match tokio::time::timeout(limit, running).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(container = name, id, error, "preStop hook failed");
                shared.recorder.container(
                    pod,
                    name,
                    Kind::Warning,
                    "FailedPreStopHook",
                    "PreStopHook failed",
                );
            }
            Err(_) => tracing::warn!(container = name, id, grace, "preStop hook exceeded grace period"),
        }
        progress.hook_ended(id);
    }
    let _ = tokio::time::timeout(limit.saturating_sub(begun.elapsed()), turn).await;
    let spent = i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX);
    let left = grace.saturating_sub(spent).max(LEAST_GRACE);
    let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
    if let Err(error) = shared.engine.stop_container(id, left).await {
        tracing::warn!(container = name, id, %error, "failed to stop container");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{ObservedContainer, RunState};

    #[test]
    fn sidecars_stop_last_in_reverse_order() {
        let text = br#"{"spec": {"initContainers": [{"name": "i"}, {"name": "s1", "restartPolicy": "Always"},
            {"name": "s2", "restartPolicy": "Always"}], "containers": [{"name": "a"}, {"name": "b"}]}}"#;
        let pod: Pod = serde_json::from_slice(text).expect("a pod");
        let containers = ["s1", "b", "s2", "a"].map(|name| ObservedContainer {
            id: format!("id-{name}"),
            name: name.to_owned(),
            state: RunState::Running,
            ..ObservedContainer::default()
        });
        let observed = ObservedPod { containers: containers.to_vec(), ..ObservedPod::default() };
        let names: Vec<Vec<String>> = kill_order(&pod, &observed)
            .into_iter()
            .map(|wave| wave.into_iter().map(|one| one.1).collect())
            .collect();
        assert_eq!(names, [vec!["b", "a"], vec!["s2"], vec!["s1"]]);
    }

    #[test]
    fn aborted_pre_stop_hook_runs_again() {
        let progress = KillProgress::default();
        assert!(progress.first_notice("a") && progress.hook_pending("a"));
        // Aborted here: the event was emitted, but the hook did not finish.
        assert!(!progress.first_notice("a") && progress.hook_pending("a"));
        progress.hook_ended("a");
        assert!(!progress.hook_pending("a") && progress.hook_pending("b"));
    }
}
