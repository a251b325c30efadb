//! Ending containers: hook, signal, patience, force; sidecars last.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use super::hooks;
use super::worker::Worker;
use crate::events::Kind;
use crate::lifecycle::members::{member, members};
use crate::lifecycle::{Kill, KillReason, MemberKind, Observed};
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
        end(&self.shared, &self.ending, pod, &kill.id, &kill.name, &kill.message, grace, &ip).await;
    }

    /// Ends every container, sidecars after the ones they serve and in the reverse of their order, then the sandboxes.
    /// `grace` overrides the pod's own.
    pub(super) async fn end_all(&mut self, pod: &Arc<Pod>, observed: &Observed, grace: Option<i64>) {
        let of_pod = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let grace = grace.unwrap_or(of_pod);
        let begun = Instant::now();
        let all = pod.spec.as_ref().map(members).unwrap_or_default();
        let sidecars: Vec<&str> = all
            .iter()
            .filter(|member| member.kind == MemberKind::Sidecar)
            .map(crate::lifecycle::Member::name)
            .collect();
        let ip = self.pod_ip(pod);
        let mut waves: Vec<Vec<(String, String)>> = vec![Vec::new()];
        let running = |name: &str| {
            observed
                .running()
                .filter(|c| c.name == name)
                .map(|c| (c.id.clone(), c.name.clone()))
                .collect::<Vec<_>>()
        };
        for container in observed.running().filter(|container| !sidecars.contains(&container.name.as_str())) {
            waves[0].push((container.id.clone(), container.name.clone()));
        }
        waves.extend(sidecars.iter().rev().map(|name| running(name)));
        for wave in waves.into_iter().filter(|wave| !wave.is_empty()) {
            let left = grace.saturating_sub(i64::try_from(begun.elapsed().as_secs()).unwrap_or(0));
            let (shared, ending, ip) = (&self.shared, &self.ending, &ip);
            let ends = wave.iter().map(|(id, name)| async move {
                let message = format!("Stopping container {name}");
                end(shared, ending, pod, id, name, &message, left, ip).await;
            });
            join_all(ends).await;
        }
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

/// Ends one container: its hook first, within the grace it has.
#[expect(clippy::too_many_arguments, reason = "each is a different fact about the one container")]
async fn end(
    shared: &Shared,
    ending: &Ending,
    pod: &Pod,
    id: &str,
    name: &str,
    message: &str,
    grace: i64,
    pod_ip: &str,
) {
    if ending.is_news(id) {
        shared.recorder.container(pod, name, Kind::Normal, "Killing", message);
    }
    let begun = Instant::now();
    let container = member(pod, name).map(|member| member.container);
    let hook = container
        .as_ref()
        .and_then(|container| container.lifecycle.as_ref())
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let (Some(hook), Some(container), true, true) = (hook, &container, grace > 0, ending.has_hook_left(id))
    {
        let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
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
