//! Conversion of sandboxes, containers and images to CRI messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use cri::v1::*;

use super::Runtime;
use super::containers::reason;
use super::records::{Container, Phase, Sandbox};
use super::sandboxes::namespaces;
use crate::shim::Identity;

fn matches(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn state(container: &Container) -> ContainerState {
    phase_status(&container.phase.borrow()).state()
}

/// Fields of a status that a phase determines. One phase determines all of them: a container that exits while its status is
/// built is either still running or has its exit code.
fn phase_status(phase: &Phase) -> ContainerStatus {
    match phase {
        Phase::Created => {
            ContainerStatus { state: ContainerState::ContainerCreated.into(), ..ContainerStatus::default() }
        }
        Phase::Running(started) => ContainerStatus {
            state: ContainerState::ContainerRunning.into(),
            started_at: started.at,
            ..ContainerStatus::default()
        },
        Phase::Exited { started, exited } => ContainerStatus {
            state: ContainerState::ContainerExited.into(),
            started_at: *started,
            finished_at: exited.at,
            exit_code: exited.code,
            reason: reason(exited).to_owned(),
            message: exited.message.clone(),
            ..ContainerStatus::default()
        },
    }
}

impl Runtime {
    fn sandbox_state(sandbox: &Sandbox) -> PodSandboxState {
        if sandbox.ready() { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready }
    }

    pub(super) fn sandbox_status(&self, sandbox: &Sandbox) -> PodSandboxStatus {
        let meta = sandbox.meta.lock().clone();
        let mut addresses =
            meta.attached.iter().flat_map(|attached| &attached.addresses).map(ToString::to_string);
        let ip = addresses.next().unwrap_or_default();
        PodSandboxStatus {
            id: meta.id,
            metadata: sandbox.config.metadata.clone(),
            state: Self::sandbox_state(sandbox).into(),
            created_at: meta.created,
            network: Some(PodSandboxNetworkStatus {
                ip,
                additional_ips: addresses.map(|ip| PodIP { ip }).collect(),
            }),
            linux: Some(LinuxPodSandboxStatus {
                namespaces: Some(Namespace { options: Some(namespaces(&sandbox.config)) }),
            }),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            runtime_handler: meta.runtime_handler,
        }
    }

    pub(super) fn container_status(&self, container: &Container) -> ContainerStatus {
        let image = container.config.image.clone().unwrap_or_default();
        let resources = container.resources.lock().clone();
        ContainerStatus {
            id: container.meta.id.clone(),
            metadata: container.config.metadata.clone(),
            created_at: container.meta.created,
            image: Some(ImageSpec { image: image_name(self, container, &image.image), ..image }),
            image_ref: container.meta.image_ref.clone(),
            image_id: container.meta.image_id.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            mounts: container.config.mounts.iter().map(|mount| self.mount_status(mount)).collect(),
            user: container.identity.get().map(user),
            log_path: container.meta.log_path.clone(),
            resources: Some(ContainerResources { linux: resources, ..ContainerResources::default() }),
            ..phase_status(&container.phase.borrow())
        }
    }

    /// A mount as requested; an image mount also with its image.
    fn mount_status(&self, mount: &Mount) -> Mount {
        let mut mount = mount.clone();
        if let Some(image) = mount.image.as_mut().filter(|image| !image.image.is_empty())
            && let Some(found) = self.images.find(&image.image)
        {
            image.image_ref = found.id;
        }
        mount
    }

    pub(super) fn select_containers(&self, filter: Option<ContainerFilter>) -> Vec<Arc<Container>> {
        let filter = filter.unwrap_or_default();
        let fits = |container: &&Arc<Container>| {
            container.meta.id.starts_with(&filter.id)
                && container.meta.sandbox.starts_with(&filter.pod_sandbox_id)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state == i32::from(state(container)))
                && matches(&filter.label_selector, &container.config.labels)
        };
        self.state.read().containers.values().filter(fits).cloned().collect()
    }

    pub(super) fn select_sandboxes(&self, filter: Option<PodSandboxFilter>) -> Vec<Arc<Sandbox>> {
        let filter = filter.unwrap_or_default();
        let all: Vec<Arc<Sandbox>> = self.state.read().sandboxes.values().cloned().collect();
        let fits = |sandbox: &Arc<Sandbox>| {
            sandbox.meta.lock().id.starts_with(&filter.id)
                && filter
                    .state
                    .as_ref()
                    .is_none_or(|wanted| wanted.state == i32::from(Self::sandbox_state(sandbox)))
                && matches(&filter.label_selector, &sandbox.config.labels)
        };
        all.into_iter().filter(fits).collect()
    }

    pub(super) fn list_sandboxes(&self, filter: Option<PodSandboxFilter>) -> Vec<PodSandbox> {
        let describe = |sandbox: Arc<Sandbox>| {
            let status = self.sandbox_status(&sandbox);
            PodSandbox {
                id: status.id,
                metadata: status.metadata,
                state: status.state,
                created_at: status.created_at,
                labels: status.labels,
                annotations: status.annotations,
                runtime_handler: status.runtime_handler,
            }
        };
        self.select_sandboxes(filter).into_iter().map(describe).collect()
    }

    pub(super) fn list_containers(&self, filter: Option<ContainerFilter>) -> Vec<cri::v1::Container> {
        let describe = |container: Arc<Container>| cri::v1::Container {
            id: container.meta.id.clone(),
            pod_sandbox_id: container.meta.sandbox.clone(),
            metadata: container.config.metadata.clone(),
            image: container.config.image.clone(),
            image_ref: container.meta.image_ref.clone(),
            image_id: container.meta.image_id.clone(),
            state: state(&container).into(),
            created_at: container.meta.created,
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        };
        self.select_containers(filter).into_iter().map(describe).collect()
    }
}

fn user(identity: &Identity) -> ContainerUser {
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: identity.uid.into(),
            gid: identity.gid.into(),
            supplemental_groups: identity.groups.iter().map(|group| (*group).into()).collect(),
        }),
    }
}

/// Display name of an image: a tag, or else the requested reference.
fn image_name(runtime: &Runtime, container: &Container, requested: &str) -> String {
    let image = runtime.images.find(&container.meta.image_id);
    image.and_then(|image| image.tags.first().cloned()).unwrap_or_else(|| requested.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::records::Exited;
    use super::*;

    #[test]
    fn exited_phase_determines_state_and_exit_code() {
        let exited = Exited {
            code: 3,
            out_of_memory: false,
            at: 20,
            reason: String::new(),
            message: "bye".to_owned(),
        };
        let status = phase_status(&Phase::Exited { started: 10, exited });
        assert_eq!(status.state(), ContainerState::ContainerExited);
        assert_eq!((status.started_at, status.finished_at, status.exit_code), (10, 20, 3));
        assert_eq!((status.reason.as_str(), status.message.as_str()), ("Error", "bye"));
        assert_eq!(phase_status(&Phase::Created), ContainerStatus::default());
    }
}
