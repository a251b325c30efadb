//! Conditions in the status of an object.

use api::value::Fields;
use machinery::Value;
use serde_json::json;

/// One condition, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    pub fn new(
        kind: &'static str,
        status: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status, reason, message: message.into() }
    }
}

/// Condition of an object by type.
pub fn find<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object.field("status").items("conditions");
    conditions.iter().find(|condition| condition.text("type") == kind)
}

pub fn is_true(object: &Value, kind: &str) -> bool {
    find(object, kind).is_some_and(|condition| condition.text("status") == "True")
}

/// Sets a condition; its time changes with its status, and other fields (`observedGeneration`) stay. Reports whether
/// anything changed.
pub fn set(object: &mut Value, condition: &Condition, now: &str) -> bool {
    let wanted = json!({
        "type": condition.kind, "status": condition.status, "reason": condition.reason,
        "message": condition.message, "lastTransitionTime": now,
    });
    let status = object.child_mut("status");
    if !status.field("conditions").is_array() {
        status.set("conditions", json!([]));
    }
    let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return false };
    let Some(known) = conditions.iter_mut().find(|known| known.text("type") == condition.kind) else {
        conditions.push(wanted);
        return true;
    };
    let is_same = known.text("status") == condition.status && known.has("lastTransitionTime");
    let before = known.clone();
    for (field, value) in wanted.as_object().into_iter().flatten() {
        if field != "lastTransitionTime" || !is_same {
            known.set(field, value.clone());
        }
    }
    *known != before
}

/// Removes a condition. Reports whether it existed.
pub fn remove(object: &mut Value, kind: &str) -> bool {
    let conditions = object.get_mut("status").and_then(|status| status.get_mut("conditions"));
    let Some(conditions) = conditions.and_then(Value::as_array_mut) else { return false };
    let before = conditions.len();
    conditions.retain(|condition| condition.text("type") != kind);
    conditions.len() != before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_condition_keeps_time_of_same_status_and_other_fields() {
        let ready = |status, reason| Condition::new("Ready", status, reason, "text");
        let mut object = json!({});
        assert!(set(&mut object, &ready("True", "A"), "1"));
        object["status"]["conditions"][0]["observedGeneration"] = json!(4);
        assert!(!set(&mut object, &ready("True", "A"), "2"));
        assert!(set(&mut object, &ready("True", "B"), "3"));
        let of = |status: &str, reason: &str, time: &str| {
            json!([{"type": "Ready", "status": status, "reason": reason, "message": "text",
                "lastTransitionTime": time, "observedGeneration": 4}])
        };
        assert_eq!(object["status"]["conditions"], of("True", "B", "1"));
        assert!(set(&mut object, &ready("False", "B"), "4"));
        assert_eq!(object["status"]["conditions"], of("False", "B", "4"));
    }
}
