//! The static policy: exclusive CPUs for containers of guaranteed pods with whole CPUs; others share the rest.

use std::collections::BTreeMap;

use objects::core::v1::{Container, Pod};

use super::CpuError;
use super::assignment::packed;
use super::cpu_set::CpuSet;
use super::distribution::distributed;
use super::options::StaticOptions;
use super::topology::{CpuTopology, Level};
use crate::lifecycle::qos;

/// Exclusive CPUs by pod UID and container, and those that all others share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    pub default_cpu_set: CpuSet,
    pub entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl CpuState {
    /// All exclusive CPUs.
    pub fn exclusive(&self) -> CpuSet {
        self.entries.values().flat_map(BTreeMap::values).flat_map(CpuSet::iter).collect()
    }
}

/// CPUs of a machine under the static policy.
#[derive(Clone, Debug)]
pub struct StaticPolicy {
    topology: CpuTopology,
    options: StaticOptions,
    /// CPUs for the system and the kubelet, which are never exclusive.
    reserved: CpuSet,
    /// The reserved CPUs and others of their cores.
    reserved_cores: CpuSet,
}

/// Number of exclusive CPUs of a container; 0 if it shares.
pub fn exclusive_count(pod: &Pod, container: &Container) -> usize {
    // Amounts of the pod as a whole have no exclusive CPUs.
    let pod_level = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()).is_some_and(|own| {
        own.requests.as_ref().is_some_and(|all| !all.is_empty())
            || own.limits.as_ref().is_some_and(|all| !all.is_empty())
    });
    if pod_level || qos::class(pod).name() != "Guaranteed" {
        return 0;
    }
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let milli = qos::amount(requests, "cpu").or_else(|| qos::amount(limits, "cpu")).unwrap_or(0);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

impl StaticPolicy {
    /// Reserves CPUs: the given ones, or `count` of the policy's choice.
    pub fn new(
        topology: CpuTopology,
        options: StaticOptions,
        count: usize,
        given: Option<&CpuSet>,
    ) -> Result<Self, CpuError> {
        let all = topology.cpus();
        let mut policy =
            Self { topology, options, reserved: CpuSet::default(), reserved_cores: CpuSet::default() };
        let reserved = match given {
            Some(given) if !given.is_subset(&all) => {
                return Err(CpuError::UnknownReserved(given.difference(&all)));
            }
            Some(given) => given.clone(),
            None => policy.choose(&all, count)?,
        };
        if reserved.is_empty() {
            return Err(CpuError::NothingReserved);
        }
        let cores = policy.topology.ids(Level::Core, &reserved);
        policy.reserved_cores = policy.topology.cpus_at(Level::Core, &cores);
        policy.reserved = reserved;
        Ok(policy)
    }

    fn choose(&self, free: &CpuSet, count: usize) -> Result<CpuSet, CpuError> {
        if self.options.distribute_across_nodes {
            let group = if self.options.full_cores_only { self.topology.cpus_per(Level::Core) } else { 1 };
            return distributed(&self.topology, free, count, group);
        }
        packed(&self.topology, free, count, self.options.prefer_caches)
    }

    /// CPUs that can be exclusive.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.cpus().difference(&self.reserved)
    }

    fn shared(&self) -> CpuSet {
        if self.options.strict_reservation { self.allocatable() } else { self.topology.cpus() }
    }

    /// State after a start: that of the earlier run, if it is still valid.
    pub fn begin(&self, state: Option<CpuState>) -> Result<CpuState, CpuError> {
        let Some(state) =
            state.filter(|state| !(state.default_cpu_set.is_empty() && state.entries.is_empty()))
        else {
            return Ok(CpuState { default_cpu_set: self.shared(), entries: BTreeMap::new() });
        };
        let invalid = |why: String| Err(CpuError::InvalidState(why));
        let default = &state.default_cpu_set;
        if default.is_empty() {
            return invalid("default cpuset cannot be empty".to_owned());
        }
        let common = self.reserved.intersection(default);
        if self.options.strict_reservation && !common.is_empty() {
            return invalid(format!(
                "some of strictly reserved cpus: \"{common}\" are present in defaultCpuSet: \"{default}\""
            ));
        }
        if !self.options.strict_reservation && common != self.reserved {
            return invalid(format!(
                "not all reserved cpus: \"{}\" are present in defaultCpuSet: \"{default}\"",
                self.reserved
            ));
        }
        for (pod, containers) in &state.entries {
            for (container, cpus) in containers {
                if !default.intersection(cpus).is_empty() {
                    return invalid(format!(
                        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{default}\""
                    ));
                }
            }
        }
        let (known, available) = (default.union(&state.exclusive()), self.shared());
        if known != available {
            return invalid(format!(
                "current set of available CPUs \"{available}\" doesn't match with CPUs in state \"{known}\""
            ));
        }
        Ok(state)
    }

    /// Allocates exclusive CPUs to a container. `reusable` are those of init containers that end before it starts.
    pub fn allocate(
        &self,
        state: &mut CpuState,
        (uid, container): (&str, &str),
        count: usize,
        reusable: &CpuSet,
    ) -> Result<(), CpuError> {
        self.check_cores(state, count)?;
        if state.entries.get(uid).is_some_and(|containers| containers.contains_key(container)) {
            return Ok(());
        }
        let free = state.default_cpu_set.difference(&self.reserved).union(reusable);
        let cpus = self.choose(&free, count)?;
        state.default_cpu_set = state.default_cpu_set.difference(&cpus);
        state.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), cpus);
        Ok(())
    }

    /// Checks that whole cores are requested and available, if only those are exclusive.
    fn check_cores(&self, state: &CpuState, count: usize) -> Result<(), CpuError> {
        let per_core = self.topology.cpus_per(Level::Core).max(1);
        if !self.options.full_cores_only {
            return Ok(());
        }
        if !count.is_multiple_of(per_core) {
            return Err(CpuError::PartialCore { requested: count, per_core });
        }
        let available = state.default_cpu_set.difference(&self.reserved_cores).len();
        if count > available {
            return Err(CpuError::TooFewCores { available, requested: count, per_core });
        }
        Ok(())
    }

    /// Returns the CPUs of pods to the shared ones; true if there were any.
    pub fn retain(&self, state: &mut CpuState, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = state.exclusive();
        state.entries.retain(|uid, _| is_kept(uid));
        let released = before.difference(&state.exclusive());
        state.default_cpu_set = state.default_cpu_set.union(&released);
        !released.is_empty()
    }
}
