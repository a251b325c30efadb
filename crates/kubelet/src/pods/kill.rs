//! Ending containers: hook, signal, patience, force; sidecars last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;

use super::hooks;
use super::worker::Worker;
use crate::events::Kind;
use crate::lifecycle::members::{member, members};
use crate::lifecycle::{Kill, KillReason, MemberKind, Observed};
use crate::shared::Shared;

/// Every container gets at least this long.
const LEAST_GRACE: i64 = 2;

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
        self.told_to_end.insert(kill.id.clone());
        let ip = self.pod_ip(pod);
        end(&self.shared, pod, &kill.id, &kill.name, &kill.message, grace, true, &ip).await;
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
            let shared = &self.shared;
            let told = &self.told_to_end;
            let ends = wave.iter().map(|(id, name)| {
                let first = !told.contains(id);
                let message = format!("Stopping container {name}");
                let ip = &ip;
                async move { end(shared, pod, id, name, &message, left, first, ip).await }
            });
            let ids: Vec<String> = wave.iter().map(|(id, _)| id.clone()).collect();
            join_all(ends).await;
            self.told_to_end.extend(ids);
        }
        for sandbox in observed.sandboxes.iter().filter(|sandbox| sandbox.ready) {
            if let Err(error) = self.shared.engine.stop_sandbox(&sandbox.id).await {
                tracing::warn!(pod = %self.uid, sandbox = sandbox.id, %error, "cannot stop the sandbox");
                let text = format!("error killing pod: {error}");
                self.shared.recorder.pod(pod, Kind::Warning, "FailedKillPod", text);
            }
        }
    }

    fn pod_ip(&self, pod: &Pod) -> String {
        pod.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default()
    }
}

/// Ends one container: its hook first, within the grace it has.
#[expect(clippy::too_many_arguments, reason = "each is a different fact about the one container")]
async fn end(
    shared: &Shared,
    pod: &Pod,
    id: &str,
    name: &str,
    message: &str,
    grace: i64,
    first: bool,
    pod_ip: &str,
) {
    if first {
        shared.recorder.container(pod, name, Kind::Normal, "Killing", message);
    }
    let begun = Instant::now();
    let container = member(pod, name).map(|member| member.container);
    let hook = container
        .as_ref()
        .and_then(|container| container.lifecycle.as_ref())
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let (Some(hook), Some(container), true, true) = (hook, &container, grace > 0, first) {
        let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let running = hooks::run(&shared.engine, hook, id, container, pod, pod_ip);
        match tokio::time::timeout(limit, running).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(container = name, error, "the hook before the stop failed");
                shared.recorder.container(
                    pod,
                    name,
                    Kind::Warning,
                    "FailedPreStopHook",
                    "PreStopHook failed",
                );
            }
            Err(_) => tracing::debug!(container = name, "the hook before the stop took too long"),
        }
    }
    let spent = i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX);
    let left = grace.saturating_sub(spent).max(LEAST_GRACE);
    let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
    if let Err(error) = shared.engine.stop_container(id, left).await {
        tracing::warn!(container = name, id, %error, "cannot stop the container");
    }
}
