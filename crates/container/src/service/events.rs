//! Container events for CRI subscribers.

use cri::v1::{ContainerEventResponse, ContainerEventType};

use super::records::Container;
use super::{Runtime, now};

impl Runtime {
    /// Sends an event to all subscribers; without any it costs nothing.
    pub(super) fn emit(&self, container: &Container, what: ContainerEventType) {
        if self.events.receiver_count() == 0 {
            return;
        }
        let sandbox = self.sandbox(&container.meta.sandbox).ok();
        let containers = self.containers_of(&container.meta.sandbox);
        let event = ContainerEventResponse {
            container_id: container.meta.id.clone(),
            container_event_type: what.into(),
            created_at: now(),
            pod_sandbox_status: sandbox.map(|sandbox| self.sandbox_status(&sandbox)),
            containers_statuses: containers
                .iter()
                .map(|container| self.container_status(container))
                .collect(),
        };
        let _ = self.events.send(event);
    }
}
