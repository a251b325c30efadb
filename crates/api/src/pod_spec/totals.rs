//! What the containers of a pod ask for together.

use super::is_sidecar;
use super::resources::quantity;
use crate::value::Fields;
use machinery::Value;
use machinery::quantity::Quantity;
use std::collections::BTreeMap;

type Amounts = BTreeMap<String, Quantity>;

/// Requests or limits (`list`) of all containers: those that run side by side add up, and an init container counts
/// where it needs more than they do.
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
    use serde_json::json;

    #[test]
    fn init_containers_set_the_least() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = container("1");
        sidecar.set("restartPolicy", "Always");
        let spec = json!({
            "containers": [container("1"), container("500m")],
            "initContainers": [sidecar, container("3")],
        });
        let totals = container_totals(&spec, "requests");
        assert_eq!(totals["cpu"].to_string(), "4");
        assert!(container_totals(&spec, "limits").is_empty());
    }
}
