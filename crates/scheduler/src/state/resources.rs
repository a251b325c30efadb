//! Resource amounts as integers: milli-CPUs, bytes, and whole units of anything else.

use std::collections::BTreeMap;

use objects::Quantity;
use objects::core::v1::{Container, ContainerStatus, Pod};

/// Defaults for containers without requests, used for scoring.
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

type Amounts = BTreeMap<String, Quantity>;

/// Requests, or the allocatable resources of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Everything else by name, sorted; short in practice.
    pub scalar: Vec<(Box<str>, i64)>,
}

impl Resources {
    /// Parses a resource list; invalid amounts count as 0, since the API server accepts none.
    #[must_use]
    pub fn of(amounts: &Amounts) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in amounts {
            resources.set(name, amount(name, quantity));
        }
        resources
    }

    #[must_use]
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            other => self.scalar(other).unwrap_or(0),
        }
    }

    /// Amount of a resource other than CPU, memory and ephemeral storage, if it is listed at all.
    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<i64> {
        self.scalar.iter().find(|(own, _)| &**own == name).map(|(_, amount)| *amount)
    }

    pub fn set(&mut self, name: &str, amount: i64) {
        *self.entry(name) = amount;
    }

    fn entry(&mut self, name: &str) -> &mut i64 {
        match name {
            "cpu" => &mut self.milli_cpu,
            "memory" => &mut self.memory,
            "ephemeral-storage" => &mut self.ephemeral_storage,
            other => {
                let at = match self.scalar.binary_search_by(|(own, _)| (**own).cmp(other)) {
                    Ok(at) => at,
                    Err(at) => {
                        self.scalar.insert(at, (other.into(), 0));
                        at
                    }
                };
                &mut self.scalar[at].1
            }
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.apply(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Self) {
        self.apply(other, i64::saturating_sub);
    }

    /// Takes the larger amount of each resource.
    pub fn raise_to(&mut self, other: &Self) {
        self.apply(other, i64::max);
    }

    fn apply(&mut self, other: &Self, combine: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = combine(self.milli_cpu, other.milli_cpu);
        self.memory = combine(self.memory, other.memory);
        self.ephemeral_storage = combine(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalar {
            let own = self.entry(name);
            *own = combine(*own, *amount);
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.milli_cpu == 0 && self.memory == 0 && self.ephemeral_storage == 0 && self.scalar.is_empty()
    }

    /// True if `newer` requests less of anything.
    #[must_use]
    pub fn shrinks_to(&self, newer: &Self) -> bool {
        self.milli_cpu > newer.milli_cpu
            || self.memory > newer.memory
            || self.ephemeral_storage > newer.ephemeral_storage
            || self.scalar.iter().any(|(name, amount)| *amount > newer.get(name))
    }
}

/// One amount in the unit its resource is counted in.
#[must_use]
pub fn amount(name: &str, quantity: &Quantity) -> i64 {
    let parsed = machinery::quantity::Quantity::parse(&quantity.0).unwrap_or_default();
    if name == "cpu" { parsed.milli_value() } else { parsed.value() }
}

/// True for scalar resources: extended resources, huge pages, attachable volumes.
#[must_use]
pub fn is_scalar(name: &str) -> bool {
    !matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pods" | "storage")
}

/// True for resources outside Kubernetes' own namespace, which profiles may ignore.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// Requests of a pod, with and without the defaults for containers without requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequests {
    pub exact: Resources,
    /// As `exact`, with defaults for CPU and memory.
    pub non_zero: Resources,
}

/// Sums up a pod: containers run concurrently, init containers sequentially, restartable ones stay.
#[must_use]
pub fn pod_requests(pod: &Pod) -> PodRequests {
    let exact = total(pod, Defaults { cpu: false, memory: false });
    // Containers share what the pod as a whole requests.
    let shared = pod_level_requests(pod).next().is_some();
    let missing = |name: &str| !shared || !is_requested(pod, name);
    let defaults = Defaults { cpu: missing("cpu"), memory: missing("memory") };
    PodRequests { exact, non_zero: total(pod, defaults) }
}

/// Resources that containers without a request of them get, for scoring.
#[derive(Clone, Copy)]
struct Defaults {
    cpu: bool,
    memory: bool,
}

/// Requests for the pod as a whole, of the resources that can be set so.
fn pod_level_requests(pod: &Pod) -> impl Iterator<Item = (&String, &Quantity)> {
    let resources = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref()).into_iter().flatten();
    requests.filter(|(name, _)| *name == "cpu" || *name == "memory" || name.starts_with("hugepages-"))
}

/// True if the pod, its overhead or one of its containers requests the resource, even none of it.
fn is_requested(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    pod_level_requests(pod).any(|(own, _)| own == name)
        || spec.overhead.as_ref().is_some_and(|overhead| overhead.contains_key(name))
        || containers.any(|container| requests(container).is_some_and(|amounts| amounts.contains_key(name)))
}

fn requests(container: &Container) -> Option<&Amounts> {
    container.resources.as_ref()?.requests.as_ref()
}

fn total(pod: &Pod, defaults: Defaults) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let infeasible = resize_is_infeasible(pod);
    let resized = |container: &Container| {
        effective(container, container_status(pod, &container.name), infeasible, defaults)
    };
    let mut sum = Resources::default();
    for container in &spec.containers {
        sum.add(&resized(container));
    }
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            let wanted = resized(container);
            sum.add(&wanted);
            sidecars.add(&wanted);
            peak.raise_to(&sidecars);
        } else {
            let mut with_sidecars = sidecars.clone();
            with_sidecars.add(&effective(container, None, infeasible, defaults));
            peak.raise_to(&with_sidecars);
        }
    }
    sum.raise_to(&peak);
    set_pod_level(pod, infeasible, &mut sum);
    if let Some(overhead) = &spec.overhead {
        sum.add(&Resources::of(overhead));
    }
    sum
}

fn container_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let mut all =
        [&status.container_statuses, &status.init_container_statuses].into_iter().flatten().flatten();
    all.find(|status| status.name == name)
}

/// Requests of a container, or the maximum of desired, actual and allocated ones during a resize.
fn effective(
    container: &Container,
    status: Option<&ContainerStatus>,
    infeasible: bool,
    defaults: Defaults,
) -> Resources {
    let resize = status.and_then(|status| Some((status.resources.as_ref()?, &status.allocated_resources)));
    let desired = requests(container).filter(|_| resize.is_none() || !infeasible);
    let actual = resize.and_then(|(actual, _)| actual.requests.as_ref());
    let allocated = resize.and_then(|(_, allocated)| allocated.as_ref());
    let lists = || [desired, actual, allocated].into_iter().flatten();
    let mut wanted = Resources::default();
    for list in lists() {
        wanted.raise_to(&Resources::of(list));
    }
    if defaults.cpu && !lists().any(|list| list.contains_key("cpu")) {
        wanted.milli_cpu = DEFAULT_MILLI_CPU;
    }
    if defaults.memory && !lists().any(|list| list.contains_key("memory")) {
        wanted.memory = DEFAULT_MEMORY;
    }
    wanted
}

/// Replaces the sum by the requests of the pod as a whole, with those of its status during a resize.
fn set_pod_level(pod: &Pod, infeasible: bool, sum: &mut Resources) {
    let status = pod.status.as_ref().filter(|status| status.resources.is_some());
    let actual = status.and_then(|status| status.resources.as_ref()?.requests.as_ref());
    let allocated = status.and_then(|status| status.allocated_resources.as_ref());
    for (name, desired) in pod_level_requests(pod) {
        let desired = (status.is_none() || !infeasible).then_some(desired);
        let of =
            |list: Option<&'_ Amounts>| list.and_then(|list| list.get(name)).map(|own| amount(name, own));
        let known = [desired.map(|own| amount(name, own)), of(actual), of(allocated)];
        sum.set(name, known.into_iter().flatten().max().unwrap_or(0));
    }
}

fn resize_is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let pending = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodResizePending");
    pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn container(cpu: &str, memory: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn pod_requests_match_vectors() {
        for vector in vectors::pod_resources() {
            let pod: Pod = serde_json::from_value(vector.pod).unwrap();
            let expected: Amounts =
                vector.requests.into_iter().map(|(name, text)| (name, Quantity(text))).collect();
            assert_eq!(pod_requests(&pod).exact, Resources::of(&expected), "{}", vector.name);
        }
    }

    #[test]
    fn missing_requests_use_scoring_defaults() {
        let requests = pod_requests(&pod(json!({"containers": [{"name": "a"}, container("1", "0")]})));
        assert_eq!(requests.exact, Resources { milli_cpu: 1000, ..Resources::default() });
        assert_eq!(requests.non_zero.milli_cpu, 1100);
        assert_eq!(requests.non_zero.memory, DEFAULT_MEMORY);
    }

    #[test]
    fn pod_level_requests_replace_scoring_defaults() {
        let spec =
            json!({"resources": {"requests": {"cpu": "2"}}, "containers": [{"name": "a"}, {"name": "b"}]});
        let non_zero = pod_requests(&pod(spec)).non_zero;
        assert_eq!((non_zero.milli_cpu, non_zero.memory), (2000, 2 * DEFAULT_MEMORY));
        let spec = json!({"resources": {"requests": {"cpu": "2"}}, "containers": [{"name": "a"}, container("1", "5")]});
        assert_eq!(pod_requests(&pod(spec)).non_zero.memory, 5);
    }

    #[test]
    fn scalar_resources_are_stored_by_name() {
        let mut resources = Resources::default();
        resources.set("example.com/gpu", 2);
        resources.set("hugepages-2Mi", 1);
        let mut other = Resources::default();
        other.set("example.com/gpu", 1);
        resources.subtract(&other);
        assert_eq!(resources.get("example.com/gpu"), 1);
        assert_eq!(resources.get("example.com/other"), 0);
        assert!(is_extended("example.com/gpu") && !is_extended("hugepages-2Mi"));
    }
}
