//! Runtime state of a pod: its sandboxes and containers, newest first.

use cri::v1::LinuxContainerResources;
use jiff::Timestamp;

/// Runtime state of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPod {
    /// Newest first.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Newest first, across all sandboxes.
    pub containers: Vec<ObservedContainer>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedSandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub host_network: bool,
    pub ips: Vec<String>,
    pub created_at: Timestamp,
}

/// Container states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunState {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedContainer {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    /// Restart count: earlier containers of this name.
    pub restarts: u32,
    pub state: RunState,
    pub created_at: Timestamp,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    /// Image reference as specified by the user.
    pub image: String,
    /// Image reference as reported by the runtime.
    pub image_id: String,
    /// Hash of the fields whose change requires a new container.
    pub hash: String,
    pub log_path: String,
    /// User, group and supplementary groups of the first process, if the runtime reports them.
    pub user: Option<(i64, i64, Vec<i64>)>,
    pub stop_signal: Option<String>,
    /// Resource limits, if the runtime reports them.
    pub resources: Option<LinuxContainerResources>,
}

impl ObservedPod {
    /// The newest sandbox.
    #[must_use]
    pub fn sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.first()
    }

    /// The newest container of that name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The second newest container of that name.
    #[must_use]
    pub fn previous(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().filter(|container| container.name == name).nth(1)
    }

    pub fn running(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|container| container.state == RunState::Running)
    }

    /// Returns true if nothing of the pod is running.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.running().next().is_none() && self.sandboxes.iter().all(|sandbox| !sandbox.ready)
    }

    /// Sorts newest first, as the accessors require.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|sandbox| std::cmp::Reverse((sandbox.created_at, sandbox.attempt)));
        self.containers
            .sort_by_key(|container| std::cmp::Reverse((container.created_at, container.restarts)));
    }
}

impl ObservedContainer {
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.state == RunState::Exited && self.exit_code == 0
    }
}
