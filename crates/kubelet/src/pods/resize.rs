//! In-place resize of running containers.

use std::sync::Arc;
use std::time::Instant;

use cri::v1::LinuxContainerResources;
use objects::core::v1::{Container, Pod, ResourceRequirements};

use super::worker::Worker;
use crate::configure::resources;
use crate::events::Kind;
use crate::lifecycle::members::members;
use crate::lifecycle::{Kill, KillReason, ObservedPod};

/// Returns true if a change of this resource restarts the container.
fn restarts(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|one| one.resource_name == resource && one.restart_policy == "RestartContainer")
}

/// Applied limits of a running container.
pub(super) struct Applied {
    sent: LinuxContainerResources,
    /// The same as API resources, if set by this kubelet.
    pub(super) resources: Option<ResourceRequirements>,
}

/// Resizable amounts, normalized where runtimes report no limit differently.
fn amounts(limits: &LinuxContainerResources) -> (i64, i64, i64) {
    (limits.cpu_quota.max(0), limits.cpu_shares.max(2), limits.memory_limit_in_bytes.max(0))
}

/// Returns true if a change between these limits requires a restart.
fn needs_restart(
    container: &Container,
    from: &LinuxContainerResources,
    to: &LinuxContainerResources,
) -> bool {
    let ((quota, shares, memory), to) = (amounts(from), amounts(to));
    let (cpu, memory) = ((quota, shares) != (to.0, to.1), memory != to.2);
    (cpu && restarts(container, "cpu")) || (memory && restarts(container, "memory"))
}

impl Worker {
    /// Applies changed limits to running containers.
    pub(super) async fn resize(&mut self, pod: &Arc<Pod>, observed: &ObservedPod) {
        let of_pod = resources::of_pod(pod);
        let changed = self.applied_to_pod.as_ref().is_some_and(|applied| *applied != of_pod);
        if changed {
            // Increases must precede those of the containers; decreases fail until the containers are smaller.
            let _ = self.shared.cgroups.put(pod, self.shared.cpus.disable_quota(&self.uid));
        }
        let all = pod.spec.as_ref().map(members).unwrap_or_default();
        self.applied.retain(|id, _| observed.running().any(|container| container.id == *id));
        self.resizing = None;
        for container in observed.running() {
            let Some(member) = all.iter().find(|member| member.name() == container.name) else { continue };
            let wanted = self.limits_of(pod, &member.container);
            // Last applied limits, or those reported by the runtime if another kubelet applied them.
            let before = self.applied.get(&container.id).map(|applied| applied.sent.clone());
            let before = before.or_else(|| container.resources.clone());
            let applied = Applied { sent: wanted.clone(), resources: member.container.resources.clone() };
            let Some(before) = before.filter(|before| amounts(before) != amounts(&wanted)) else {
                self.applied.insert(container.id.clone(), applied);
                continue;
            };
            if needs_restart(&member.container, &before, &wanted) {
                let message = format!("Container {} resize requires restart", container.name);
                let kill = Kill {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    reason: KillReason::PodEnds,
                    message,
                };
                self.kill_container(pod, &kill).await;
                self.resizing.get_or_insert(None);
                continue;
            }
            // A removed limit must be unset explicitly.
            let mut sent = wanted.clone();
            if sent.cpu_quota == 0 && before.cpu_quota != 0 {
                sent.cpu_quota = -1;
            }
            if sent.memory_limit_in_bytes == 0 && before.memory_limit_in_bytes != 0 {
                sent.memory_limit_in_bytes = -1;
            }
            let begun = Instant::now();
            let updated = self.shared.engine.update_resources(&container.id, sent).await;
            self.shared.metrics.pods.resized(updated.is_ok(), begun);
            match updated {
                Ok(()) => {
                    self.applied.insert(container.id.clone(), applied);
                }
                Err(error) => {
                    let text = format!("error resizing container {}: {error}", container.name);
                    self.resizing = Some(Some(text.clone()));
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
    fn resize_policy_decides_restart() {
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
        let unlimited = LinuxContainerResources { memory_limit_in_bytes: -1, cpu_quota: -1, ..from.clone() };
        assert!(!needs_restart(&container, &from, &unlimited), "both mean no limit");
    }
}
