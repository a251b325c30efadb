//! Allocation of the node's resources to a pod, the asynchronous part of its admission.

use std::sync::Arc;
use std::time::Duration;

use cri::v1::LinuxContainerResources;
use objects::core::v1::{Container, Pod};

use super::worker::Worker;
use crate::configure::resources;
use crate::events::Kind;
use crate::lifecycle::ObservedPod;

/// Delay of the next attempt to release resources.
const RELEASE_RETRY: Duration = Duration::from_secs(5);
/// Reason of a rejection for any other cause than missing capacity.
const UNEXPECTED: &str = "UnexpectedAdmissionError";

impl Worker {
    /// Allocates devices and CPUs to the pod. Returns the reason and message if the pod is rejected.
    pub(super) async fn allocate(&self, pod: &Pod, observed: &ObservedPod) -> Option<(String, String)> {
        // A sandbox that is up was admitted by an earlier run of the kubelet; after a restart of the machine there is none.
        if observed.sandbox().is_some_and(|sandbox| sandbox.ready) {
            return None;
        }
        let is_running = |name: &str| observed.running().any(|container| container.name == name);
        if let Err(error) = self.shared.devices.allocate_pod(pod, &is_running, &|_| None).await {
            return Some(self.reject(pod, UNEXPECTED, &error));
        }
        if let Err(error) = self.shared.cpus.allocate_pod(pod, &is_running).await {
            self.shared.devices.release(&self.uid).await;
            return Some(self.reject(pod, error.reason(), &error));
        }
        None
    }

    /// Releases the resources of a pod whose containers have ended, before its status reports the end: others get them
    /// then. Returns false if a driver failed to unprepare a claim, which is tried again.
    pub(super) async fn release_resources(&self) -> bool {
        self.shared.devices.release(&self.uid).await;
        self.shared.cpus.release(&self.uid).await;
        let Err(error) = self.shared.dra.unprepare(&self.uid).await else { return true };
        tracing::warn!(pod = %self.uid, %error, "failed to unprepare dynamic resources, retrying");
        let news = Arc::clone(&self.news);
        self.shared.tasks.spawn_until_stopped(async move {
            tokio::time::sleep(RELEASE_RETRY).await;
            news.notify_one();
        });
        false
    }

    fn reject(&self, pod: &Pod, reason: &'static str, error: &dyn std::error::Error) -> (String, String) {
        let message = match reason {
            UNEXPECTED => format!("Allocate failed due to {error}, which is unexpected"),
            _ => error.to_string(),
        };
        tracing::info!(pod = %self.uid, reason, message, "pod rejected");
        self.shared.metrics.pods.rejected(reason);
        self.shared.recorder.pod(pod, Kind::Warning, reason, message.clone());
        (reason.to_owned(), format!("Pod was rejected: {message}"))
    }

    /// Limits of a container, with its CPUs.
    pub(super) fn limits_of(&self, pod: &Pod, container: &Container) -> LinuxContainerResources {
        let limits = resources::of_container(pod, container, self.shared.settings.memory_capacity);
        self.shared.cpus.limit(&self.uid, &container.name, limits)
    }
}
