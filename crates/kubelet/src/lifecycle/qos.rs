//! Quality of service: which class a pod's requests and limits put it in, and what the kernel is told of it.

use std::collections::BTreeMap;

use machinery::quantity::Quantity;
use objects::Quantity as Text;
use objects::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::members::is_sidecar;

/// The classes of quality of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// The class of a pod. The API server's own answer, given when the pod was created, wins.
#[must_use]
pub fn class(pod: &Pod) -> Qos {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => return Qos::Guaranteed,
        Some("Burstable") => return Qos::Burstable,
        Some("BestEffort") => return Qos::BestEffort,
        _ => {}
    }
    pod.spec.as_ref().map_or(Qos::BestEffort, compute)
}

fn compute(spec: &PodSpec) -> Qos {
    if let Some(resources) = spec.resources.as_ref().filter(|resources| any_compute(resources)) {
        return if is_guaranteed(resources) { Qos::Guaranteed } else { Qos::Burstable };
    }
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let resources = |container: &Container| container.resources.clone().unwrap_or_default();
    if containers().all(|container| !any_compute(&resources(container))) {
        Qos::BestEffort
    } else if containers().all(|container| is_guaranteed(&resources(container))) {
        Qos::Guaranteed
    } else {
        Qos::Burstable
    }
}

fn any_compute(resources: &ResourceRequirements) -> bool {
    let set = |list: &Option<BTreeMap<String, Text>>| {
        COMPUTE.iter().any(|name| amount(list.as_ref(), name).is_some_and(|value| value > 0))
    };
    set(&resources.requests) || set(&resources.limits)
}

fn is_guaranteed(resources: &ResourceRequirements) -> bool {
    COMPUTE.iter().all(|name| {
        let limit = amount(resources.limits.as_ref(), name).filter(|limit| *limit > 0);
        let request = amount(resources.requests.as_ref(), name);
        limit.is_some() && request.is_none_or(|request| Some(request) == limit)
    })
}

/// An amount in thousandths.
#[must_use]
pub fn amount(list: Option<&BTreeMap<String, Text>>, name: &str) -> Option<i64> {
    let text = list?.get(name)?;
    Quantity::parse(&text.0).ok().map(|quantity| quantity.milli_value())
}

/// An amount in whole units, rounded up.
#[must_use]
pub fn whole(list: Option<&BTreeMap<String, Text>>, name: &str) -> Option<i64> {
    let text = list?.get(name)?;
    Quantity::parse(&text.0).ok().map(|quantity| quantity.value())
}

/// What a pod asks for: the sum of what runs together, or the most that one init container needs before.
#[must_use]
pub fn pod_requests(spec: &PodSpec, name: &str) -> i64 {
    total(spec, name, |resources| resources.requests.as_ref())
}

/// The limits of a pod's containers together, those that have none left out.
#[must_use]
pub fn total_limits(spec: &PodSpec, name: &str) -> i64 {
    total(spec, name, |resources| resources.limits.as_ref())
}

/// What a pod may use; `None` when one of its containers has no limit.
#[must_use]
pub fn pod_limits(spec: &PodSpec, name: &str) -> Option<i64> {
    if let Some(limit) = spec.resources.as_ref().and_then(|own| amount(own.limits.as_ref(), name)) {
        return Some(limit);
    }
    let limits = |container: &Container| {
        container.resources.as_ref().and_then(|own| amount(own.limits.as_ref(), name)).is_some_and(|v| v > 0)
    };
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .all(limits)
        .then(|| total(spec, name, |resources| resources.limits.as_ref()))
}

fn total(
    spec: &PodSpec,
    name: &str,
    list: fn(&ResourceRequirements) -> Option<&BTreeMap<String, Text>>,
) -> i64 {
    if let Some(own) = spec.resources.as_ref().and_then(|own| amount(list(own), name)) {
        return own;
    }
    let of = |container: &Container| {
        container.resources.as_ref().and_then(|own| amount(list(own), name)).unwrap_or(0)
    };
    let mut sidecars = 0_i64;
    let mut peak = 0_i64;
    for container in spec.init_containers.iter().flatten() {
        if is_sidecar(container) {
            sidecars = sidecars.saturating_add(of(container));
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars.saturating_add(of(container)));
        }
    }
    let together = spec.containers.iter().map(of).fold(sidecars, i64::saturating_add);
    let overhead = amount(spec.overhead.as_ref(), name).unwrap_or(0);
    together.max(peak).saturating_add(overhead)
}

/// How gladly the kernel kills a container's processes when memory runs out.
#[must_use]
pub fn oom_score_adjustment(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let spec = pod.spec.as_ref();
    if spec.and_then(|spec| spec.priority).is_some_and(|priority| priority >= 2_000_000_000) {
        return -997;
    }
    match class(pod) {
        Qos::Guaranteed => -997,
        Qos::BestEffort => 1000,
        Qos::Burstable => {
            let request = container.resources.as_ref().and_then(|own| whole(own.requests.as_ref(), "memory"));
            let share = request.unwrap_or(0).saturating_mul(1000).checked_div(memory_capacity).unwrap_or(0);
            (1000 - share).clamp(3, 999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ResourceRequirements {
        let list = |rows: &[(&str, &str)]| {
            Some(rows.iter().map(|(name, value)| ((*name).to_owned(), Text((*value).to_owned()))).collect())
        };
        ResourceRequirements { requests: list(requests), limits: list(limits), ..Default::default() }
    }

    fn spec(all: Vec<ResourceRequirements>) -> PodSpec {
        let containers = all
            .into_iter()
            .map(|resources| Container { resources: Some(resources), ..Container::default() })
            .collect();
        PodSpec { containers, ..PodSpec::default() }
    }

    #[test]
    fn classes() {
        let both = [("cpu", "1"), ("memory", "1Gi")];
        for (containers, want) in [
            (vec![resources(&[], &[])], Qos::BestEffort),
            (vec![resources(&both, &both)], Qos::Guaranteed),
            (vec![resources(&[], &both)], Qos::Guaranteed),
            (vec![resources(&both, &both), resources(&[], &[])], Qos::Burstable),
            (vec![resources(&[("cpu", "100m")], &[])], Qos::Burstable),
            (vec![resources(&[("cpu", "500m")], &both)], Qos::Burstable),
            (vec![resources(&[("ephemeral-storage", "1Gi")], &[])], Qos::BestEffort),
        ] {
            assert_eq!(compute(&spec(containers)), want);
        }
    }

    #[test]
    fn totals_take_the_peak_of_init_containers() {
        let mut pod = spec(vec![resources(&[("cpu", "100m")], &[]), resources(&[("cpu", "200m")], &[])]);
        assert_eq!(pod_requests(&pod, "cpu"), 300);
        assert_eq!(pod_limits(&pod, "cpu"), None);
        pod.init_containers = Some(vec![Container {
            resources: Some(resources(&[("cpu", "1")], &[])),
            ..Container::default()
        }]);
        assert_eq!(pod_requests(&pod, "cpu"), 1000);
    }
}
