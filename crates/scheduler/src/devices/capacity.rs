//! Consumable capacity: what a request consumes of a device, and whether that is left.

use std::collections::BTreeMap;

use machinery::quantity::{Format, Quantity};
use objects::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity};

use super::quantity;
use super::usage::Consumed;

type Amounts = BTreeMap<String, objects::Quantity>;
type Capacities = BTreeMap<String, DeviceCapacity>;

/// Reports whether a device has the requested capacity in addition to the `used` one.
pub fn fits(
    capacities: Option<&Capacities>,
    requested: Option<&Amounts>,
    used: &[Option<&Consumed>],
) -> bool {
    let is_known = |name: &String| capacities.is_some_and(|capacities| capacities.contains_key(name));
    if !requested.into_iter().flatten().all(|(name, _)| is_known(name)) {
        return false;
    }
    capacities.into_iter().flatten().all(|(name, capacity)| {
        let consumed = consumed(requested.and_then(|amounts| amounts.get(name)), capacity);
        let mut total = consumed;
        for used in used.iter().flatten() {
            if let Some(amount) = used.get(name) {
                total += *amount;
            }
        }
        is_allowed(consumed, capacity.request_policy.as_ref()) && total <= quantity(&capacity.value)
    })
}

/// Amount of each capacity of a device that a request consumes.
pub fn consumption(capacities: Option<&Capacities>, requested: Option<&Amounts>) -> Consumed {
    let amount =
        |name: &String, capacity| consumed(requested.and_then(|amounts| amounts.get(name)), capacity);
    capacities.into_iter().flatten().map(|(name, capacity)| (name.clone(), amount(name, capacity))).collect()
}

fn consumed(requested: Option<&objects::Quantity>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested.map(quantity) else {
        return quantity(policy.and_then(|policy| policy.default.as_ref()).unwrap_or(&capacity.value));
    };
    let Some(policy) = policy else { return requested };
    if let Some(range) = &policy.valid_range {
        return round_up(requested, range);
    }
    let mut larger = policy.valid_values.iter().flatten().map(quantity).filter(|valid| *valid >= requested);
    larger.next().unwrap_or(requested)
}

/// The least valid amount of a range that is not below the requested one.
fn round_up(requested: Quantity, range: &CapacityRequestPolicyRange) -> Quantity {
    let min = quantity(&range.min);
    if requested < min {
        return min;
    }
    let Some(step) = step(range) else { return requested };
    let added = i128::from(requested.value()) - i128::from(min.value());
    let steps = added.div_euclid(step) + i128::from(added.rem_euclid(step) != 0);
    let total = i128::from(min.value()) + step * steps;
    Quantity::new(i64::try_from(total).unwrap_or(i64::MAX)).with_format(Format::Binary)
}

fn step(range: &CapacityRequestPolicyRange) -> Option<i128> {
    range.step.as_ref().map(|step| i128::from(quantity(step).value())).filter(|step| *step > 0)
}

fn is_allowed(consumed: Quantity, policy: Option<&CapacityRequestPolicy>) -> bool {
    let Some(policy) = policy else { return true };
    if policy.default.as_ref().is_some_and(|default| quantity(default) == consumed) {
        return true;
    }
    if let Some(range) = &policy.valid_range {
        let added = i128::from(consumed.value()) - i128::from(quantity(&range.min).value());
        return range.max.as_ref().is_none_or(|max| consumed <= quantity(max))
            && step(range).is_none_or(|step| added.rem_euclid(step) == 0);
    }
    let valid = policy.valid_values.as_deref().unwrap_or_default();
    valid.is_empty() || valid.iter().any(|valid| quantity(valid) == consumed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse(text: &str) -> Quantity {
        Quantity::parse(text).expect("a quantity")
    }

    #[test]
    fn request_is_rounded_up_by_policy() {
        let range = json!({"default": "2", "validRange": {"min": "2", "max": "8", "step": "2"}});
        let values = json!({"default": "1", "validValues": ["1", "4", "8"]});
        for (policy, requested, used, consumed, expected) in [
            (json!(null), None, "0", "10", true),
            (json!(null), None, "1", "10", false),
            (json!(null), Some("3"), "7", "3", true),
            (json!(null), Some("3"), "8", "3", false),
            (range.clone(), None, "0", "2", true),
            (range.clone(), Some("1"), "0", "2", true),
            (range.clone(), Some("3"), "0", "4", true),
            (range.clone(), Some("8"), "0", "8", true),
            (range, Some("9"), "0", "10", false),
            (values.clone(), None, "0", "1", true),
            (values.clone(), Some("2"), "0", "4", true),
            (values, Some("9"), "0", "9", false),
        ] {
            let mut capacity = json!({"size": {"value": "10"}});
            if policy != Value::Null {
                capacity["size"]["requestPolicy"] = policy.clone();
            }
            let capacity: Capacities = serde_json::from_value(capacity).expect("capacities");
            let requested: Option<Amounts> =
                requested.map(|amount| serde_json::from_value(json!({"size": amount})).expect("amounts"));
            let own = consumption(Some(&capacity), requested.as_ref());
            assert_eq!(own["size"], parse(consumed), "{policy} {requested:?}");
            let used = Consumed::from([("size".to_owned(), parse(used))]);
            let fits = fits(Some(&capacity), requested.as_ref(), &[Some(&used), None]);
            assert_eq!(fits, expected, "{policy} {requested:?} {used:?}");
        }
    }

    #[test]
    fn request_of_unknown_capacity_does_not_fit() {
        let requested: Amounts = serde_json::from_value(json!({"size": "1"})).expect("amounts");
        assert!(!fits(None, Some(&requested), &[]));
        assert!(fits(None, None, &[]));
    }
}
