//! The quality of service class of a pod.

use crate::pod_spec::resources::quantity;
use crate::value::Fields;
use machinery::Value;
use machinery::quantity::Quantity;

/// The class that the pod's resources put it in.
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

/// Sums of what counts for the class.
#[derive(Default)]
struct Compute {
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
}

impl Compute {
    /// Adds amounts above zero; says whether both were there.
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

    /// Every amount here is the same there.
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
    use serde_json::json;

    #[test]
    fn classes() {
        let pod = |resources: Vec<Value>| {
            let containers: Vec<Value> = resources.into_iter().map(|r| json!({"resources": r})).collect();
            json!({"containers": containers})
        };
        let full =
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}});
        for (spec, want) in [
            (pod(vec![json!({})]), "BestEffort"),
            (pod(vec![json!({"requests": {"cpu": "0"}})]), "BestEffort"),
            (pod(vec![full.clone()]), "Guaranteed"),
            (pod(vec![full.clone(), json!({})]), "Burstable"),
            (pod(vec![json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}})]), "Burstable"),
            (pod(vec![json!({"requests": {"storage.x/y": "1"}})]), "BestEffort"),
            (json!({"resources": full, "containers": [{}]}), "Guaranteed"),
        ] {
            assert_eq!(compute(&spec), want, "{spec}");
        }
    }
}
