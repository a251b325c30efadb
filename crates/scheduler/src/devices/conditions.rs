//! Binding conditions of allocated devices: whether a pod can be bound to its node.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use objects::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};

use super::usage::results;

/// State of the devices of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Some condition is not true yet.
    Pending,
    /// A failure condition is true.
    Failed(String),
}

fn has_conditions(result: &DeviceRequestAllocationResult) -> bool {
    result.binding_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty())
}

/// Reports whether the pod has to wait for devices of the claim.
pub fn has_binding_conditions(claim: &ResourceClaim) -> bool {
    results(claim).any(has_conditions)
}

fn status_of<'a>(
    claim: &'a ResourceClaim,
    result: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let mut statuses = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
    statuses.find(|status| {
        (&status.device, &status.driver, &status.pool) == (&result.device, &result.driver, &result.pool)
    })
}

/// Readiness of all devices of an allocated claim.
pub fn readiness(claim: &ResourceClaim) -> Readiness {
    if claim.status.as_ref().is_none_or(|status| status.allocation.is_none()) {
        return Readiness::Pending;
    }
    for result in results(claim).filter(|result| has_conditions(result)) {
        let Some(status) = status_of(claim, result) else { return Readiness::Pending };
        let is_true = |name: &String| {
            let mut conditions = status.conditions.iter().flatten();
            conditions
                .find(|condition| condition.type_ == *name)
                .filter(|condition| condition.status == "True")
        };
        if let Some(failed) = result.binding_failure_conditions.iter().flatten().find_map(is_true) {
            return Readiness::Failed(format!(
                "device binding failed: claim={}, reason={}, message={:?}",
                claim.metadata.name.as_deref().unwrap_or_default(),
                failed.reason,
                failed.message
            ));
        }
        if result.binding_conditions.iter().flatten().any(|name| is_true(name).is_none()) {
            return Readiness::Pending;
        }
    }
    Readiness::Ready
}

/// Reports whether the conditions have taken too long since the allocation.
pub fn has_timed_out(claim: &ResourceClaim, limit: Duration, now: Timestamp) -> bool {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let Some(since) = allocation.and_then(|allocation| allocation.allocation_timestamp.as_ref()) else {
        return false;
    };
    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
    results(claim).any(|result| result.binding_conditions.is_some()) && now.duration_since(since.0) > limit
}

#[cfg(test)]
mod tests {
    use super::super::fixture::claim_named;
    use super::*;
    use serde_json::{Value, json};

    fn claim(conditions: Value) -> ResourceClaim {
        let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x",
            "bindingConditions": ["Ready", "Attached"], "bindingFailureConditions": ["Broken"]});
        let mut status = json!({"allocation": {
            "devices": {"results": [result]}, "allocationTimestamp": "2025-01-01T00:00:00Z"}});
        if conditions != Value::Null {
            let condition = |(name, value): (&String, &Value)| {
                json!({"type": name, "status": value, "reason": "Why", "message": "so",
                    "lastTransitionTime": "2025-01-01T00:00:00Z"})
            };
            let list: Vec<Value> = conditions.as_object().into_iter().flatten().map(condition).collect();
            status["devices"] = json!([{"driver": "d", "pool": "p", "device": "x", "conditions": list}]);
        }
        claim_named(json!({"metadata": {"namespace": "default", "name": "c"}, "status": status}))
    }

    #[test]
    fn device_is_ready_when_all_conditions_are_true() {
        let failed = "device binding failed: claim=c, reason=Why, message=\"so\"".to_owned();
        for (conditions, expected) in [
            (Value::Null, Readiness::Pending),
            (json!({"Ready": "True"}), Readiness::Pending),
            (json!({"Ready": "True", "Attached": "False"}), Readiness::Pending),
            (json!({"Ready": "True", "Attached": "True"}), Readiness::Ready),
            (json!({"Ready": "True", "Attached": "True", "Broken": "False"}), Readiness::Ready),
            (json!({"Ready": "True", "Attached": "True", "Broken": "True"}), Readiness::Failed(failed)),
        ] {
            assert_eq!(readiness(&claim(conditions.clone())), expected, "{conditions}");
        }
        assert!(has_binding_conditions(&claim(Value::Null)));
    }

    #[test]
    fn conditions_time_out_after_allocation() {
        let claim = claim(Value::Null);
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let limit = Duration::from_secs(600);
        assert!(!has_timed_out(&claim, limit, at("2025-01-01T00:10:00Z")));
        assert!(has_timed_out(&claim, limit, at("2025-01-01T00:10:01Z")));
    }
}
