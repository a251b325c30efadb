//! Requests and limits of a whole pod: containers, init containers, sidecars, pod-level resources, overhead, and
//! resizes that are not complete. The same rules as in quota admission; `vectors` compares them.

use std::collections::BTreeMap;

use machinery::quantity::Quantity;
use objects::Quantity as Text;
use objects::core::v1::{Container, ContainerStatus, Pod, ResourceRequirements};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Requests,
    Limits,
}

/// The resources of containers that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Spec,
    /// The maximum of desired, allocated and actual resources, of which a resize may change one after the other.
    SpecAndStatus,
}

pub fn add(total: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        match total.get_mut(&name) {
            Some(known) => *known += amount,
            None => {
                total.insert(name, amount);
            }
        }
    }
}

/// Amounts of an API object; invalid ones are skipped.
#[must_use]
pub fn read(list: Option<&BTreeMap<String, Text>>) -> Amounts {
    let all = list.into_iter().flatten();
    all.filter_map(|(name, text)| Some((name.clone(), Quantity::parse(&text.0).ok()?))).collect()
}

fn raise(total: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let known = total.entry(name.clone()).or_insert(*amount);
        if *amount > *known {
            *known = *amount;
        }
    }
}

fn of(resources: Option<&ResourceRequirements>, list: List) -> Amounts {
    read(resources.and_then(|all| match list {
        List::Requests => all.requests.as_ref(),
        List::Limits => all.limits.as_ref(),
    }))
}

/// Resources that can be set for the pod as a whole.
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Reports whether the pod has requests of its own.
#[must_use]
pub fn has_pod_level_requests(pod: &Pod) -> bool {
    let resources = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    resources.is_some_and(|all| all.requests.iter().flatten().any(|(name, _)| is_pod_level(name)))
}

/// Requests or limits of the pod.
#[must_use]
pub fn total(pod: &Pod, list: List, source: Source) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let mut total = containers(pod, list, source);
    let own = of(spec.resources.as_ref(), list);
    total.extend(own.into_iter().filter(|(name, _)| is_pod_level(name)));
    let mut overhead = read(spec.overhead.as_ref());
    if list == List::Limits {
        // A limit of zero is none.
        overhead.retain(|name, _| total.get(name).is_some_and(|limit| !limit.is_zero()));
    }
    add(&mut total, overhead);
    total
}

/// Sum of the concurrent containers, or the peak of the init containers if that is more.
fn containers(pod: &Pod, list: List, source: Source) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let infeasible = is_resize_infeasible(pod);
    let amounts = |container: &Container| effective(pod, container, list, source, infeasible);
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, amounts(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for init in spec.init_containers.iter().flatten() {
        let mut now = sidecars.clone();
        if is_sidecar(init) {
            add(&mut now, amounts(init));
            add(&mut total, amounts(init));
            sidecars.clone_from(&now);
        } else {
            add(&mut now, of(init.resources.as_ref(), list));
        }
        raise(&mut peak, &now);
    }
    raise(&mut total, &peak);
    total
}

#[must_use]
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

fn effective(pod: &Pod, container: &Container, list: List, source: Source, infeasible: bool) -> Amounts {
    let desired = of(container.resources.as_ref(), list);
    let status = match source {
        Source::Spec => None,
        Source::SpecAndStatus => status(pod, &container.name),
    };
    let Some((status, actual)) = status.and_then(|status| Some((status, status.resources.as_ref()?))) else {
        return desired;
    };
    let mut most = if infeasible { Amounts::new() } else { desired };
    raise(&mut most, &of(Some(actual), list));
    if list == List::Requests {
        raise(&mut most, &read(status.allocated_resources.as_ref()));
    }
    most
}

fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    containers.into_iter().find(|status| status.name == name)
}

fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let pending = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodResizePending");
    pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_resources_match_vectors() {
        for vector in vectors::pod_resources() {
            let pod: Pod = serde_json::from_value(vector.pod.clone()).expect("a pod");
            let sources = [Some(Source::SpecAndStatus), (!vector.has_status()).then_some(Source::Spec)];
            for source in sources.into_iter().flatten() {
                let requests = texts(&total(&pod, List::Requests, source));
                assert_eq!(requests, vector.quota_requests, "requests, {source:?}: {}", vector.name);
                let limits = texts(&total(&pod, List::Limits, source));
                assert_eq!(limits, vector.limits, "limits, {source:?}: {}", vector.name);
            }
        }
    }

    fn texts(amounts: &Amounts) -> BTreeMap<String, String> {
        amounts.iter().map(|(name, amount)| (name.clone(), amount.to_string())).collect()
    }
}
