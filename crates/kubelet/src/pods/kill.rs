//! Ending containers: hook, signal, patience, force; sidecars last.

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
use crate::lifecycle::{Kill, KillReason, Member, MemberKind, Observed};
use crate::shared::Shared;

/// Every container gets at least this long.
const LEAST_GRACE: i64 = 2;

/// What was done for containers that end, by id: work that is broken off, because there is less time than was thought,
/// begins again where it was.
#[derive(Debug, Default)]
pub(super) struct Ending(Mutex<(BTreeSet<String>, BTreeSet<String>)>);

impl Ending {
    /// Whether nobody was told yet that the container ends.
    fn is_news(&self, id: &str) -> bool {
        self.0.lock().0.insert(id.to_owned())
    }

    /// Whether its hook has not come to an end yet.
    fn has_hook_left(&self, id: &str) -> bool {
        !self.0.lock().1.contains(id)
    }

    fn hook_ended(&self, id: &str) {
        self.0.lock().1.insert(id.to_owned());
    }
}

impl Worker {
    /// Ends one container and waits for it.
    pub(super) async fn end_one(&mut self, pod: &Arc<Pod>, kill: &Kill) {
        let of_pod = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let probe = member(pod, &kill.name).and_then(|member| match kill.reason {
            KillReason::LivenessFailed => member.container.liveness_probe,
            KillReason::StartupFailed => member.container.startup_probe,
            _ => None,
        });
        let grace = probe.and_then(|probe| probe.termination_grace_period_seconds).unwrap_or(of_pod);
        let ip = self.pod_ip(pod);
        let told = Told { id: &kill.id, name: &kill.name, message: &kill.message, grace };
        end(&self.shared, &self.ending, pod, &told, &ip, std::future::ready(())).await;
    }

    /// Removes containers one after the other, running ones without the time they would have otherwise; their logs stay.
    pub(super) async fn remove_all(&mut self, pod: &Arc<Pod>, all: &[Reset]) -> Result<(), EngineError> {
        let ip = self.pod_ip(pod);
        for one in all {
            if one.running {
                let told = Told { id: &one.id, name: &one.name, message: "killing", grace: 0 };
                end(&self.shared, &self.ending, pod, &told, &ip, std::future::ready(())).await;
            }
            self.shared.engine.remove_container(&one.id).await?;
        }
        Ok(())
    }

    /// Ends every container, sidecars after the ones they serve and in the reverse of their order, then the sandboxes.
    /// What containers do before they stop, sidecars do at once. `grace` overrides the pod's own.
    pub(super) async fn end_all(&mut self, pod: &Arc<Pod>, observed: &Observed, grace: Option<i64>) {
        let of_pod = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let grace = grace.unwrap_or(of_pod);
        let ip = self.pod_ip(pod);
        let waves = waves(pod, observed);
        let done = watch::Sender::new(0_usize);
        let ends = waves.iter().enumerate().map(|(at, wave)| {
            let (shared, ending, done, ip) = (&self.shared, &self.ending, &done, ip.as_str());
            async move {
                let ends = wave.iter().map(|(id, name)| {
                    let message = format!("Stopping container {name}");
                    let mut before = done.subscribe();
                    async move {
                        let turn = async {
                            let _ = before.wait_for(|done| *done >= at).await;
                        };
                        let told = Told { id, name, message: &message, grace };
                        end(shared, ending, pod, &told, ip, turn).await;
                    }
                });
                join_all(ends).await;
                done.send_modify(|done| *done = (*done).max(at + 1));
            }
        });
        join_all(ends).await;
        for sandbox in observed.sandboxes.iter().filter(|sandbox| sandbox.ready) {
            if let Err(error) = self.shared.engine.stop_sandbox(&sandbox.id).await {
                tracing::warn!(pod = %self.uid, sandbox = sandbox.id, %error, "cannot stop the sandbox");
                let text = format!("error killing pod: {error}");
                self.shared.recorder.pod(pod, Kind::Warning, "FailedKillPod", text);
            }
        }
    }

    /// What was told last may not have come back yet.
    fn pod_ip(&self, pod: &Pod) -> String {
        let told = self.written.iter().chain(&pod.status);
        told.filter_map(|status| status.pod_ip.clone()).next().unwrap_or_default()
    }
}

/// Which containers end together, by id and name: ordinary ones first, then sidecars in the reverse of their order.
fn waves(pod: &Pod, observed: &Observed) -> Vec<Vec<(String, String)>> {
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

/// A container that is to end, within `grace` seconds.
struct Told<'a> {
    id: &'a str,
    name: &'a str,
    message: &'a str,
    grace: i64,
}

/// Ends one container: its hook first, then, when it is its turn, the container itself; all within the grace it has.
async fn end(
    shared: &Shared,
    ending: &Ending,
    pod: &Pod,
    told: &Told<'_>,
    pod_ip: &str,
    turn: impl Future<Output = ()>,
) {
    let Told { id, name, message, grace } = *told;
    if ending.is_news(id) {
        shared.recorder.container(pod, name, Kind::Normal, "Killing", message);
    }
    let begun = Instant::now();
    let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let container = member(pod, name).map(|member| member.container);
    let hook = container
        .as_ref()
        .and_then(|container| container.lifecycle.as_ref())
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let (Some(hook), Some(container), true, true) = (hook, &container, grace > 0, ending.has_hook_left(id))
    {
        let running = hooks::run(&shared.engine, hook, id, container, pod, pod_ip);
        match tokio::time::timeout(limit, running).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(container = name, id, error, "the hook before the stop failed");
                shared.recorder.container(
                    pod,
                    name,
                    Kind::Warning,
                    "FailedPreStopHook",
                    "PreStopHook failed",
                );
            }
            Err(_) => tracing::warn!(container = name, id, grace, "the hook before the stop took too long"),
        }
        ending.hook_ended(id);
    }
    let _ = tokio::time::timeout(limit.saturating_sub(begun.elapsed()), turn).await;
    let spent = i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX);
    let left = grace.saturating_sub(spent).max(LEAST_GRACE);
    let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
    if let Err(error) = shared.engine.stop_container(id, left).await {
        tracing::warn!(container = name, id, %error, "cannot stop the container");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{ObservedContainer, RunState};

    #[test]
    fn sidecars_end_last_and_backwards() {
        let text = br#"{"spec": {"initContainers": [{"name": "i"}, {"name": "s1", "restartPolicy": "Always"},
            {"name": "s2", "restartPolicy": "Always"}], "containers": [{"name": "a"}, {"name": "b"}]}}"#;
        let pod: Pod = serde_json::from_slice(text).expect("a pod");
        let containers = ["s1", "b", "s2", "a"].map(|name| ObservedContainer {
            id: format!("id-{name}"),
            name: name.to_owned(),
            state: RunState::Running,
            ..ObservedContainer::default()
        });
        let observed = Observed { containers: containers.to_vec(), ..Observed::default() };
        let names: Vec<Vec<String>> = waves(&pod, &observed)
            .into_iter()
            .map(|wave| wave.into_iter().map(|one| one.1).collect())
            .collect();
        assert_eq!(names, [vec!["b", "a"], vec!["s2"], vec!["s1"]]);
    }

    #[test]
    fn a_hook_that_is_broken_off_runs_again() {
        let ending = Ending::default();
        assert!(ending.is_news("a") && ending.has_hook_left("a"));
        // Broken off here: it was told already, but its hook did not end.
        assert!(!ending.is_news("a") && ending.has_hook_left("a"));
        ending.hook_ended("a");
        assert!(!ending.has_hook_left("a") && ending.has_hook_left("b"));
    }
}
