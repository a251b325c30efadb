//! Unified view of a pod's containers: init containers, sidecars, regular and ephemeral ones.

use objects::core::v1::{Container, EphemeralContainer, Pod, PodSpec};

/// Role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// Runs to completion before the next one starts.
    Init,
    /// A restartable init container, which keeps running beside the regular ones.
    Sidecar,
    App,
    /// Added to a running pod for debugging.
    Ephemeral,
}

/// A container of a pod with its role.
#[derive(Clone, Debug)]
pub struct Member {
    pub kind: MemberKind,
    pub container: Container,
    /// Target container of an ephemeral container.
    pub target: Option<String>,
}

impl Member {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.container.name
    }
}

#[must_use]
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// All containers: init containers and sidecars in order, then regular ones, then ephemeral ones.
#[must_use]
pub fn members(spec: &PodSpec) -> Vec<Member> {
    let init = spec.init_containers.iter().flatten().map(|container| Member {
        kind: if is_sidecar(container) { MemberKind::Sidecar } else { MemberKind::Init },
        container: container.clone(),
        target: None,
    });
    let app = spec.containers.iter().map(|container| Member {
        kind: MemberKind::App,
        container: container.clone(),
        target: None,
    });
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| Member {
        kind: MemberKind::Ephemeral,
        container: as_container(container),
        target: container.target_container_name.clone().filter(|name| !name.is_empty()),
    });
    init.chain(app).chain(ephemeral).collect()
}

/// Returns the member of that name.
#[must_use]
pub fn member(pod: &Pod, name: &str) -> Option<Member> {
    members(pod.spec.as_ref()?).into_iter().find(|member| member.name() == name)
}

#[must_use]
pub fn as_container(from: &EphemeralContainer) -> Container {
    Container {
        name: from.name.clone(),
        image: from.image.clone(),
        command: from.command.clone(),
        args: from.args.clone(),
        working_dir: from.working_dir.clone(),
        ports: from.ports.clone(),
        env_from: from.env_from.clone(),
        env: from.env.clone(),
        resources: from.resources.clone(),
        volume_mounts: from.volume_mounts.clone(),
        volume_devices: from.volume_devices.clone(),
        termination_message_path: from.termination_message_path.clone(),
        termination_message_policy: from.termination_message_policy.clone(),
        image_pull_policy: from.image_pull_policy.clone(),
        security_context: from.security_context.clone(),
        stdin: from.stdin,
        stdin_once: from.stdin_once,
        tty: from.tty,
        ..Container::default()
    }
}
