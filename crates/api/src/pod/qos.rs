//! The quality of service class of a pod.

use crate::pod_spec::resources::quantity;
use crate::value::Fields;
use machinery::Value;
use machinery::quantity::Quantity;

/// QoS class of a pod: that of its status, which is set at creation, or by its resources.
pub fn class(pod: &Value) -> &str {
    match pod.field("status").text("qosClass") {
        "" => compute(pod.field("spec")),
        class => class,
    }
}

/// QoS class by the pod's resources.
pub fn compute(spec: &Value) -> &'static str {
    let mut requests = Compute::default();
    let mut limits = Compute::default();
    let mut all_limited = true;
    let of_pod = spec.field("resources");
    if of_pod.is_null() {
        for list in ["containers", "initContainers"] {
            for container in spec.items(list) {
                let resources = container.field("resources");
                requests.add(resources.field("requests"));
                all_limited &= limits.add(resources.field("limits"));
            }
        }
    } else {
        requests.add(of_pod.field("requests"));
        if of_pod.entries("limits").is_some_and(|limits| !limits.is_empty()) {
            all_limited &= limits.add(of_pod.field("limits"));
        }
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if all_limited && requests.covered_by(&limits) && requests.len() == limits.len() {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Sums of the resources that determine the class.
#[derive(Default)]
struct Compute {
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
}

impl Compute {
    /// Adds positive amounts; true if both resources are present.
    fn add(&mut self, amounts: &Value) -> bool {
        let cpu = add(&mut self.cpu, amounts.field("cpu"));
        add(&mut self.memory, amounts.field("memory")) && cpu
    }

    fn len(&self) -> usize {
        usize::from(self.cpu.is_some()) + usize::from(self.memory.is_some())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if every amount here equals that of the other.
    fn covered_by(&self, other: &Compute) -> bool {
        let covered = |own: Option<Quantity>, others: Option<Quantity>| own.is_none() || own == others;
        covered(self.cpu, other.cpu) && covered(self.memory, other.memory)
    }
}

fn add(sum: &mut Option<Quantity>, value: &Value) -> bool {
    if value.is_null() {
        return false;
    }
    let amount = quantity(value);
    if amount.sign() <= 0 {
        return false;
    }
    match sum {
        Some(sum) => *sum += amount,
        None => *sum = Some(amount),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qos_classes_match_vectors() {
        for vector in vectors::qos_classes() {
            assert_eq!(class(&vector.pod), vector.class, "{}", vector.name);
            if !vector.has_status() {
                assert_eq!(compute(vector.pod.field("spec")), vector.class, "{}", vector.name);
            }
        }
    }
}
