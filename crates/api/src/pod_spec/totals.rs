//! Total resources of a pod's containers.

use super::is_sidecar;
use super::resources::quantity;
use crate::value::Fields;
use machinery::Value;
use machinery::quantity::Quantity;
use std::collections::BTreeMap;

type Amounts = BTreeMap<String, Quantity>;

/// Requests or limits (`list`) of all containers: those of concurrent containers add up, and an init container counts
/// if it needs more than their sum.
pub fn container_totals(spec: &Value, list: &str) -> Amounts {
    let mut total = Amounts::new();
    for container in spec.items("containers") {
        add(&mut total, container, list);
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.items("initContainers") {
        let mut now = sidecars.clone();
        add(&mut now, container, list);
        if is_sidecar(container) {
            add(&mut total, container, list);
            sidecars.clone_from(&now);
        }
        raise(&mut peak, now);
    }
    raise(&mut total, peak);
    total
}

fn add(amounts: &mut Amounts, container: &Value, list: &str) {
    for (name, value) in container.field("resources").entries(list).into_iter().flatten() {
        let amount = quantity(value);
        match amounts.get_mut(name) {
            Some(sum) => *sum += amount,
            None => {
                amounts.insert(name.clone(), amount);
            }
        }
    }
}

fn raise(amounts: &mut Amounts, others: Amounts) {
    for (name, amount) in others {
        let slot = amounts.entry(name).or_insert(amount);
        if amount > *slot {
            *slot = amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_totals_match_vectors() {
        let texts = |spec: &Value, list: &str| -> BTreeMap<String, String> {
            let totals = container_totals(spec, list);
            totals.into_iter().map(|(name, amount)| (name, amount.to_string())).collect()
        };
        for vector in vectors::pod_resources().into_iter().filter(vectors::PodResources::has_only_containers)
        {
            let spec = vector.pod.field("spec");
            assert_eq!(texts(spec, "requests"), vector.requests, "requests: {}", vector.name);
            assert_eq!(texts(spec, "limits"), vector.limits, "limits: {}", vector.name);
        }
    }
}
