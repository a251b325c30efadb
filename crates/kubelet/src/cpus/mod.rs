//! CPUs of containers: exclusive ones under the static policy of the CPU manager, the shared rest for others.
//!
//! [`topology`] reads the machine; [`assignment`] and [`distribution`] select CPUs, [`static_policy`] keeps them, all pure.

mod assignment;
mod cpu_set;
mod distribution;
mod follow;
mod options;
mod state_file;
mod static_policy;
mod topology;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cri::v1::LinuxContainerResources;
use objects::core::v1::{Container, Pod};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use cpu_set::CpuSet;
pub use follow::follow;
pub use options::StaticOptions;
use static_policy::{CpuState, StaticPolicy, exclusive_count};
use topology::CpuTopology;

use crate::lifecycle::members::is_sidecar;

/// Settings of the CPU manager.
#[derive(Clone, Debug)]
pub struct CpuManagerConfig {
    /// Options of the static policy; absent with the policy `none`.
    pub static_policy: Option<StaticOptions>,
    /// CPUs for the system, in place of a number of them.
    pub reserved: Option<CpuSet>,
    /// Time between corrections of the CPUs of running containers.
    pub reconcile_period: Duration,
}

impl Default for CpuManagerConfig {
    fn default() -> Self {
        Self { static_policy: None, reserved: None, reconcile_period: RECONCILE_PERIOD }
    }
}

const RECONCILE_PERIOD: Duration = Duration::from_secs(10);
const NONE: &str = "none";
const STATIC: &str = "static";

/// Failure to allocate CPUs or to begin with the policy, in the words that pods report in Kubernetes.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    TooFew { requested: usize, available: usize },
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    PartialCore { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = \
         {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores { available: usize, requested: usize, per_core: usize },
    #[error("the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")]
    NothingReserved,
    #[error("reserved CPUs {0} are not online")]
    UnknownReserved(CpuSet),
    #[error("invalid state: {0}, please drain node and remove policy state file")]
    InvalidState(String),
    #[error(
        "could not restore state from checkpoint: {reason}, please drain this node and delete the CPU manager \
         checkpoint file {path:?} before restarting Kubelet"
    )]
    Restore { path: PathBuf, reason: String },
    #[error("failed to write CPU manager state file {0:?}")]
    Write(PathBuf, #[source] io::Error),
}

impl CpuError {
    /// Reason of the rejected pod.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::PartialCore { .. } | Self::TooFewCores { .. } => "SMTAlignmentError",
            _ => "UnexpectedAdmissionError",
        }
    }
}

struct Parts {
    policy: StaticPolicy,
    state: Mutex<CpuState>,
    path: PathBuf,
    /// True if the CPU quota of exclusive CPUs is disabled.
    disables_quota: bool,
    /// Locked while the state is written, so that writes have an order.
    writing: tokio::sync::Mutex<()>,
    changed: Notify,
}

/// CPUs of a node. Clones share the state.
#[derive(Clone)]
pub struct Cpus(Option<Arc<Parts>>);

impl Cpus {
    /// Loads the state of an earlier run from the kubelet's directory. `reserved` is the amount of CPU for the system in
    /// thousandths.
    pub fn open(config: &CpuManagerConfig, reserved: i64, kubelet: &Path) -> Result<Self, CpuError> {
        let Some(options) = config.static_policy else {
            // Containers of another policy would keep their CPUs.
            state_file::read(&kubelet.join(state_file::FILE), NONE)?;
            return Ok(Self(None));
        };
        let topology = CpuTopology::read(Path::new("/sys/devices/system"));
        Self::with_topology(topology, options, config.reserved.as_ref(), reserved, kubelet)
    }

    fn with_topology(
        topology: CpuTopology,
        options: StaticOptions,
        given: Option<&CpuSet>,
        reserved: i64,
        kubelet: &Path,
    ) -> Result<Self, CpuError> {
        let count = usize::try_from(reserved.saturating_add(999) / 1000).unwrap_or(0);
        let policy = StaticPolicy::new(topology, options, count, given)?;
        let path = kubelet.join(state_file::FILE);
        let state = policy.begin(state_file::read(&path, STATIC)?)?;
        state_file::write(&path, STATIC, &state).map_err(|source| CpuError::Write(path.clone(), source))?;
        tracing::info!(shared = %state.default_cpu_set, "static CPU manager policy is in force");
        Ok(Self(Some(Arc::new(Parts {
            policy,
            state: Mutex::new(state),
            path,
            disables_quota: base::features::enabled("DisableCPUQuotaWithExclusiveCPUs"),
            writing: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        }))))
    }

    /// Allocates CPUs to the containers of a pod, except running ones. On failure nothing is allocated.
    pub async fn allocate_pod(
        &self,
        pod: &Pod,
        is_running: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<(), CpuError> {
        let (Some(parts), Some(spec)) = (&self.0, &pod.spec) else { return Ok(()) };
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let init = spec.init_containers.iter().flatten().map(|container| (container, !is_sidecar(container)));
        let containers: Vec<(&Container, bool)> =
            init.chain(spec.containers.iter().map(|container| (container, false))).collect();
        if containers.iter().all(|(container, _)| exclusive_count(pod, container) == 0) {
            return Ok(());
        }
        Self::allocate(parts, pod, uid, &containers, is_running)?;
        self.save().await
    }

    fn allocate(
        parts: &Parts,
        pod: &Pod,
        uid: &str,
        containers: &[(&Container, bool)],
        is_running: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<(), CpuError> {
        let mut current = parts.state.lock();
        let mut state = current.clone();
        let mut reusable = CpuSet::default();
        for (container, ends) in containers {
            let count = exclusive_count(pod, container);
            if count == 0 || is_running(&container.name) {
                continue;
            }
            parts.policy.allocate(&mut state, (uid, &container.name), count, &reusable)?;
            let own =
                state.entries.get(uid).and_then(|all| all.get(&container.name)).cloned().unwrap_or_default();
            reusable = if *ends { reusable.union(&own) } else { reusable.difference(&own) };
        }
        *current = state;
        Ok(())
    }

    /// Returns the CPUs of a pod to the shared ones.
    pub async fn release(&self, uid: &str) {
        self.retain(|other| other != uid).await;
    }

    /// Returns the CPUs of all pods but those of the predicate to the shared ones.
    pub async fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let Some(parts) = &self.0 else { return };
        let released = parts.policy.retain(&mut parts.state.lock(), is_kept);
        if released && let Err(error) = self.save().await {
            tracing::warn!(%error, "failed to write the state of the CPU manager");
        }
    }

    /// CPUs of a container: its exclusive ones, or the shared ones. `None` without a policy: all of the machine.
    #[must_use]
    pub fn of_container(&self, uid: &str, container: &str) -> Option<CpuSet> {
        let state = self.0.as_ref()?.state.lock();
        let own = state.entries.get(uid).and_then(|containers| containers.get(container));
        Some(own.unwrap_or(&state.default_cpu_set).clone())
    }

    /// Exclusive CPUs of a container.
    #[must_use]
    pub fn exclusive_of(&self, uid: &str, container: &str) -> Option<CpuSet> {
        let state = self.0.as_ref()?.state.lock();
        state.entries.get(uid)?.get(container).cloned()
    }

    /// Adds the CPUs of a container to its limits. Exclusive CPUs have no quota.
    #[must_use]
    pub fn limit(
        &self,
        uid: &str,
        container: &str,
        mut limits: LinuxContainerResources,
    ) -> LinuxContainerResources {
        let Some(parts) = &self.0 else { return limits };
        let state = parts.state.lock();
        let own = state.entries.get(uid).and_then(|containers| containers.get(container));
        limits.cpuset_cpus = own.unwrap_or(&state.default_cpu_set).to_string();
        if own.is_some() && parts.disables_quota {
            limits.cpu_quota = -1;
        }
        limits
    }

    /// Returns true if the pod has no CPU quota, because a container of it has exclusive CPUs.
    #[must_use]
    pub fn disable_quota(&self, uid: &str) -> bool {
        let has_exclusive = |parts: &Arc<Parts>| parts.state.lock().entries.contains_key(uid);
        self.0.as_ref().is_some_and(|parts| parts.disables_quota && has_exclusive(parts))
    }

    /// Returns true under the static policy.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.0.is_some()
    }

    /// CPUs that can be exclusive.
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        self.0.as_ref().map(|parts| parts.policy.allocatable()).unwrap_or_default()
    }

    /// Waits until the shared CPUs have changed; never without a policy.
    pub async fn changed(&self) {
        match &self.0 {
            Some(parts) => parts.changed.notified().await,
            None => std::future::pending().await,
        }
    }

    async fn save(&self) -> Result<(), CpuError> {
        let Some(parts) = &self.0 else { return Ok(()) };
        parts.changed.notify_one();
        let _writing = parts.writing.lock().await;
        let (path, state) = (parts.path.clone(), parts.state.lock().clone());
        let write = move || state_file::write(&path, STATIC, &state);
        let outcome = tokio::task::spawn_blocking(write).await;
        let outcome = outcome.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        outcome.map_err(|source| CpuError::Write(parts.path.clone(), source))
    }
}

/// Parses the settings of the CPU manager; errors have Kubernetes' words.
pub fn parse_policy(
    policy: &str,
    options: &BTreeMap<String, String>,
) -> Result<Option<StaticOptions>, String> {
    match policy {
        NONE if options.is_empty() => Ok(None),
        NONE => Err("None policy: received unsupported options".to_owned()),
        STATIC => StaticOptions::parse(options, base::features::enabled).map(Some),
        other => Err(format!("unknown policy: {other:?}")),
    }
}

#[cfg(test)]
mod tests;
