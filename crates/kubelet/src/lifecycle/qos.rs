//! Quality of service: the class of a pod by its requests and limits, and its OOM score.

use std::collections::BTreeMap;

use machinery::quantity::Quantity;
use objects::Quantity as Text;
use objects::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::members::is_sidecar;

/// QoS classes.
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

/// QoS class of a pod. The value in its status, set at creation, takes precedence.
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

/// Class by the resources of the pod as a whole, or of its containers.
fn compute(spec: &PodSpec) -> Qos {
    let (mut requests, mut limits) = (ComputeSum::default(), ComputeSum::default());
    let mut all_limited = true;
    if let Some(own) = &spec.resources {
        requests.add(own.requests.as_ref());
        let limited = limits.add(own.limits.as_ref());
        all_limited = limited || own.limits.as_ref().is_none_or(BTreeMap::is_empty);
    } else {
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let own = container.resources.as_ref();
            requests.add(own.and_then(|own| own.requests.as_ref()));
            all_limited &= limits.add(own.and_then(|own| own.limits.as_ref()));
        }
    }
    if requests.is_empty() && limits.is_empty() {
        Qos::BestEffort
    } else if all_limited && requests == limits {
        Qos::Guaranteed
    } else {
        Qos::Burstable
    }
}

/// Sums of the resources that determine the class, in the order of [`COMPUTE`]; only positive amounts count.
#[derive(Default, PartialEq, Eq)]
struct ComputeSum([Option<Quantity>; COMPUTE.len()]);

impl ComputeSum {
    /// Adds a list; true if it has all resources.
    fn add(&mut self, list: Option<&BTreeMap<String, Text>>) -> bool {
        let mut complete = true;
        for (sum, name) in self.0.iter_mut().zip(COMPUTE) {
            let amount = list.and_then(|list| Quantity::parse(&list.get(name)?.0).ok());
            match (sum, amount.filter(|amount| amount.sign() > 0)) {
                (_, None) => complete = false,
                (Some(sum), Some(amount)) => *sum += amount,
                (sum, amount) => *sum = amount,
            }
        }
        complete
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// Amount in thousandths.
#[must_use]
pub fn amount(list: Option<&BTreeMap<String, Text>>, name: &str) -> Option<i64> {
    let text = list?.get(name)?;
    Quantity::parse(&text.0).ok().map(|quantity| quantity.milli_value())
}

/// Amount in whole units, rounded up.
#[must_use]
pub fn whole(list: Option<&BTreeMap<String, Text>>, name: &str) -> Option<i64> {
    let text = list?.get(name)?;
    Quantity::parse(&text.0).ok().map(|quantity| quantity.value())
}

/// Requests of a pod: the sum of concurrently running containers, or the maximum of one init container if larger, and
/// the overhead. Requests of the pod as a whole replace those of its containers.
#[must_use]
pub fn pod_requests(spec: &PodSpec, name: &str) -> i64 {
    let requests = |own: &ResourceRequirements| amount(own.requests.as_ref(), name);
    let own = pod_level(spec, name, requests);
    own.unwrap_or_else(|| peak(spec, requests).0).saturating_add(overhead(spec, name))
}

/// Sum of the limits of a pod's containers, skipping those without one, or the limit of the pod as a whole.
#[must_use]
pub fn total_limits(spec: &PodSpec, name: &str) -> i64 {
    let limits = |own: &ResourceRequirements| amount(own.limits.as_ref(), name);
    match pod_level(spec, name, limits).unwrap_or_else(|| peak(spec, limits).0) {
        0 => 0,
        limit => limit.saturating_add(overhead(spec, name)),
    }
}

/// Limits of a pod; `None` if some containers run without a limit.
#[must_use]
pub fn pod_limits(spec: &PodSpec, name: &str) -> Option<i64> {
    let limits = |own: &ResourceRequirements| amount(own.limits.as_ref(), name);
    let declared = pod_level(spec, name, limits).is_some_and(|limit| limit > 0) || peak(spec, limits).1;
    declared.then(|| total_limits(spec, name))
}

fn overhead(spec: &PodSpec, name: &str) -> i64 {
    amount(spec.overhead.as_ref(), name).unwrap_or(0)
}

/// Amount for the pod as a whole, of the resources that can be set so.
fn pod_level(
    spec: &PodSpec,
    name: &str,
    amount: impl Fn(&ResourceRequirements) -> Option<i64>,
) -> Option<i64> {
    let supported = COMPUTE.contains(&name) || name.starts_with("hugepages-");
    spec.resources.as_ref().filter(|_| supported).and_then(amount)
}

/// Largest amount that the containers use at a time, and whether it is positive at any time: an init container runs
/// beside the sidecars before it.
fn peak(spec: &PodSpec, amount: impl Fn(&ResourceRequirements) -> Option<i64>) -> (i64, bool) {
    let of = |container: &Container| container.resources.as_ref().and_then(&amount).unwrap_or(0);
    let (mut sidecars, mut peak, mut always) = (0_i64, 0_i64, true);
    for container in spec.init_containers.iter().flatten() {
        let now = sidecars.saturating_add(of(container));
        if is_sidecar(container) {
            sidecars = now;
        }
        peak = peak.max(now);
        always &= now > 0;
    }
    always &= spec.containers.iter().all(|container| of(container) > 0);
    let together = spec.containers.iter().map(of).fold(sidecars, i64::saturating_add);
    (together.max(peak), always)
}

/// `oom_score_adj` of a container's processes.
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

    #[test]
    fn qos_classes_match_vectors() {
        for vector in vectors::qos_classes() {
            let pod = objects::from_value(&vector.pod).expect("a pod");
            assert_eq!(class(&pod).name(), vector.class, "{}", vector.name);
        }
    }

    #[test]
    fn pod_requests_and_limits_match_vectors() {
        for vector in vectors::pod_resources().into_iter().filter(|vector| !vector.has_status()) {
            let pod: Pod = objects::from_value(&vector.pod).expect("a pod");
            let spec = pod.spec.expect("a spec");
            let milli = |list: &BTreeMap<String, String>, name: &str| {
                list.get(name).map_or(0, |text| Quantity::parse(text).expect("a quantity").milli_value())
            };
            for name in ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu"] {
                let expected = (milli(&vector.requests, name), milli(&vector.limits, name));
                let found = (pod_requests(&spec, name), total_limits(&spec, name));
                assert_eq!(found, expected, "{name}: {}", vector.name);
            }
        }
    }

    #[test]
    fn pod_is_limited_if_every_container_is() {
        let container =
            |limit: &str| serde_json::json!({"name": "c", "resources": {"limits": {"cpu": limit}}});
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = "Always".into();
        let spec =
            |init: Vec<serde_json::Value>, containers: Vec<serde_json::Value>, pod: serde_json::Value| {
                let spec = serde_json::json!({
                    "initContainers": init, "containers": containers, "resources": {"limits": pod},
                });
                serde_json::from_value::<PodSpec>(spec).expect("a spec")
            };
        let none = || serde_json::json!({});
        for (spec, expected) in [
            (spec(vec![], vec![container("1"), container("2")], none()), Some(3000)),
            (spec(vec![], vec![container("1"), container("0")], none()), None),
            (spec(vec![container("0")], vec![container("1")], none()), None),
            // Beside a sidecar that has a limit, an init container is limited too.
            (spec(vec![sidecar, container("0")], vec![container("1")], none()), Some(2000)),
            (spec(vec![], vec![container("0")], serde_json::json!({"cpu": "4"})), Some(4000)),
        ] {
            assert_eq!(pod_limits(&spec, "cpu"), expected, "{spec:?}");
        }
    }
}
