//! Requests and limits that changed while a container runs.

use k8s_openapi::api::core::v1::Pod;

use super::worker::Worker;
use crate::configure::resources;
use crate::events::Kind;
use crate::lifecycle::Observed;
use crate::lifecycle::members::members;

impl Worker {
    /// Tells the runtime about new limits of running containers. What a container was made with is taken as applied.
    pub(super) async fn resize(&mut self, pod: &Pod, observed: &Observed) {
        let all = pod.spec.as_ref().map(members).unwrap_or_default();
        self.applied.retain(|id, _| observed.running().any(|container| container.id == *id));
        for container in observed.running() {
            let Some(member) = all.iter().find(|member| member.name() == container.name) else { continue };
            let wanted =
                resources::of_container(pod, &member.container, self.shared.settings.memory_capacity);
            match self.applied.get(&container.id) {
                Some(applied) if *applied == wanted => continue,
                // Nothing is known of it: it was made with what the pod says, or by another kubelet.
                None => {
                    self.applied.insert(container.id.clone(), wanted);
                    continue;
                }
                Some(_) => {}
            }
            match self.shared.engine.update_resources(&container.id, wanted.clone()).await {
                Ok(()) => {
                    self.applied.insert(container.id.clone(), wanted);
                }
                Err(error) => {
                    let text = format!("error resizing container {}: {error}", container.name);
                    self.shared.recorder.container(pod, &container.name, Kind::Warning, "ResizeError", text);
                }
            }
        }
    }
}
