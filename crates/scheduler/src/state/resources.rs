//! Amounts of resources as plain integers: thousandths of a processor, bytes, and whole units of anything else.

use std::collections::BTreeMap;

use objects::Quantity;
use objects::core::v1::{Container, ContainerStatus, Pod};

/// What a container that asks for nothing counts as when nodes are scored.
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

type Amounts = BTreeMap<String, Quantity>;

/// Requests, or what a node has to give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Everything else by name, sorted; short in practice.
    pub scalar: Vec<(Box<str>, i64)>,
}

impl Resources {
    /// Reads a list of amounts; unreadable ones count as nothing, as the API server lets none through.
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

    /// The amount of a resource that is neither processor, memory nor local storage, if it is listed at all.
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

    /// Keeps the larger amount of each resource.
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

    /// Whether `newer` asks for less of anything.
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

/// Names that a scheduler counts one by one: extended resources, huge pages, attachable volumes.
#[must_use]
pub fn is_scalar(name: &str) -> bool {
    !matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pods" | "storage")
}

/// Resources outside Kubernetes' own namespace, which profiles may be told to ignore.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// What a pod asks for, with and without the defaults for containers that ask for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequests {
    pub exact: Resources,
    /// As `exact`, with defaults for processor and memory.
    pub non_zero: Resources,
}

/// Adds up a pod: containers run together, init containers one after another, those that restart always stay.
#[must_use]
pub fn pod_requests(pod: &Pod) -> PodRequests {
    PodRequests { exact: total(pod, false), non_zero: total(pod, true) }
}

fn total(pod: &Pod, fill: bool) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let statuses = |name: &str| {
        let status = pod.status.as_ref()?;
        let find = |list: &Option<Vec<ContainerStatus>>| {
            list.as_ref()?.iter().find(|status| status.name == name).cloned()
        };
        find(&status.container_statuses).or_else(|| find(&status.init_container_statuses))
    };
    let resized = pod.status.as_ref().is_some_and(|status| {
        let has = |list: &Option<Vec<ContainerStatus>>| {
            list.as_ref().is_some_and(|list| list.iter().any(|status| status.resources.is_some()))
        };
        has(&status.container_statuses) || has(&status.init_container_statuses)
    });
    let infeasible = resized && resize_is_infeasible(pod);
    let of = |container: &Container, may_resize: bool| {
        let asked = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let mut wanted = asked.map(Resources::of).unwrap_or_default();
        let mut named: Vec<&String> = asked.map(|amounts| amounts.keys().collect()).unwrap_or_default();
        let status = if resized && may_resize { statuses(&container.name) } else { None };
        if let Some(status) = &status
            && let Some(actual) = status.resources.as_ref().and_then(|resources| resources.requests.as_ref())
        {
            if infeasible {
                wanted = Resources::default();
                named.clear();
            }
            wanted.raise_to(&Resources::of(actual));
            named.extend(actual.keys());
            if let Some(allocated) = &status.allocated_resources {
                wanted.raise_to(&Resources::of(allocated));
                named.extend(allocated.keys());
            }
        }
        if fill {
            if !named.iter().any(|name| *name == "cpu") {
                wanted.milli_cpu = DEFAULT_MILLI_CPU;
            }
            if !named.iter().any(|name| *name == "memory") {
                wanted.memory = DEFAULT_MEMORY;
            }
        }
        wanted
    };

    let mut sum = Resources::default();
    for container in &spec.containers {
        sum.add(&of(container, true));
    }
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let stays = container.restart_policy.as_deref() == Some("Always");
        let wanted = of(container, stays);
        if stays {
            sum.add(&wanted);
            sidecars.add(&wanted);
            peak.raise_to(&sidecars);
        } else {
            let mut with_sidecars = sidecars.clone();
            with_sidecars.add(&wanted);
            peak.raise_to(&with_sidecars);
        }
    }
    sum.raise_to(&peak);
    if let Some(requests) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()) {
        for (name, quantity) in requests {
            if name == "cpu" || name == "memory" || name.starts_with("hugepages-") {
                sum.set(name, amount(name, quantity));
            }
        }
    }
    if let Some(overhead) = &spec.overhead {
        sum.add(&Resources::of(overhead));
    }
    sum
}

fn resize_is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    })
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
    fn pods_add_up_as_in_kubernetes() {
        let stays = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}});
        let cases = [
            ("containers", json!({"containers": [container("1", "1Gi"), container("500m", "1Mi")]}), 1500),
            (
                "a large init container",
                json!({"initContainers": [container("3", "1")], "containers": [container("1", "1")]}),
                3000,
            ),
            ("a sidecar", json!({"initContainers": [stays], "containers": [container("1", "1")]}), 2000),
            (
                "a sidecar before a large init container",
                json!({"initContainers": [stays, container("3", "1")], "containers": [container("1", "1")]}),
                4000,
            ),
            (
                "a sidecar after a large init container",
                json!({"initContainers": [container("3", "1"), stays], "containers": [container("1", "1")]}),
                3000,
            ),
            ("overhead", json!({"overhead": {"cpu": "250m"}, "containers": [container("1", "1")]}), 1250),
            (
                "pod level",
                json!({"resources": {"requests": {"cpu": "7"}}, "containers": [container("1", "1")]}),
                7000,
            ),
        ];
        for (name, spec, milli_cpu) in cases {
            assert_eq!(pod_requests(&pod(spec)).exact.milli_cpu, milli_cpu, "{name}");
        }
    }

    #[test]
    fn what_is_not_asked_for_counts_by_default_when_scoring() {
        let requests = pod_requests(&pod(json!({"containers": [{"name": "a"}, container("1", "0")]})));
        assert_eq!(requests.exact, Resources { milli_cpu: 1000, ..Resources::default() });
        assert_eq!(requests.non_zero.milli_cpu, 1100);
        assert_eq!(requests.non_zero.memory, DEFAULT_MEMORY);
    }

    #[test]
    fn a_resize_counts_at_its_largest_until_it_is_done() {
        let mut resized = pod(json!({"containers": [container("1", "1")]}));
        let status = json!({"containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "3"}},
        }]});
        resized.status = serde_json::from_value(status).unwrap();
        assert_eq!(pod_requests(&resized).exact.milli_cpu, 3000);
    }

    #[test]
    fn scalars_are_kept_by_name() {
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
