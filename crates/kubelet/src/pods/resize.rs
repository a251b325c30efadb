//! Requests and limits that changed while a container runs.

use std::sync::Arc;

use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::worker::Worker;
use crate::configure::resources;
use crate::events::Kind;
use crate::lifecycle::members::members;
use crate::lifecycle::{Kill, KillReason, Observed};

/// Whether a change of this resource needs a new container.
fn restarts(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|one| one.resource_name == resource && one.restart_policy == "RestartContainer")
}

/// Whether the way from one set of limits to another leads through a restart.
fn needs_restart(
    container: &Container,
    from: &LinuxContainerResources,
    to: &LinuxContainerResources,
) -> bool {
    let cpu = (from.cpu_quota, from.cpu_shares) != (to.cpu_quota, to.cpu_shares);
    let memory = from.memory_limit_in_bytes != to.memory_limit_in_bytes;
    (cpu && restarts(container, "cpu")) || (memory && restarts(container, "memory"))
}

impl Worker {
    /// Tells the runtime about new limits of running containers. What a container was made with is taken as applied.
    pub(super) async fn resize(&mut self, pod: &Arc<Pod>, observed: &Observed) {
        let of_pod = resources::of_pod(pod);
        let changed = self.applied_to_pod.as_ref().is_some_and(|applied| *applied != of_pod);
        if changed {
            // Larger limits must be there before those of containers; smaller ones fail until those are smaller too.
            let _ = self.shared.cgroups.put(pod);
        }
        let all = pod.spec.as_ref().map(members).unwrap_or_default();
        self.applied.retain(|id, _| observed.running().any(|container| container.id == *id));
        for container in observed.running() {
            let Some(member) = all.iter().find(|member| member.name() == container.name) else { continue };
            let wanted =
                resources::of_container(pod, &member.container, self.shared.settings.memory_capacity);
            let before = match self.applied.get(&container.id) {
                Some(applied) if *applied == wanted => continue,
                // Nothing is known of it: it was made with what the pod says, or by another kubelet.
                None => {
                    self.applied.insert(container.id.clone(), wanted);
                    continue;
                }
                Some(applied) => applied.clone(),
            };
            if needs_restart(&member.container, &before, &wanted) {
                let message = format!("Container {} resize requires restart", container.name);
                let kill = Kill {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    reason: KillReason::PodEnds,
                    message,
                };
                self.end_one(pod, &kill).await;
                continue;
            }
            // What had a limit and has none now must be told so.
            let mut told = wanted.clone();
            if told.cpu_quota == 0 && before.cpu_quota != 0 {
                told.cpu_quota = -1;
            }
            if told.memory_limit_in_bytes == 0 && before.memory_limit_in_bytes != 0 {
                told.memory_limit_in_bytes = -1;
            }
            match self.shared.engine.update_resources(&container.id, told).await {
                Ok(()) => {
                    self.applied.insert(container.id.clone(), wanted);
                }
                Err(error) => {
                    let text = format!("error resizing container {}: {error}", container.name);
                    self.shared.recorder.container(pod, &container.name, Kind::Warning, "ResizeError", text);
                }
            }
        }
        if changed {
            self.put_cgroup(pod);
        }
        self.applied_to_pod = Some(of_pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_decides_about_restarts() {
        let container: Container = serde_json::from_str(
            r#"{"name": "c", "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"},
                                              {"resourceName": "cpu", "restartPolicy": "NotRequired"}]}"#,
        )
        .expect("a container");
        let from = LinuxContainerResources::default();
        let cpu = LinuxContainerResources { cpu_quota: 1, ..from.clone() };
        let memory = LinuxContainerResources { memory_limit_in_bytes: 1, ..from.clone() };
        assert!(!needs_restart(&container, &from, &cpu));
        assert!(needs_restart(&container, &from, &memory));
    }
}
