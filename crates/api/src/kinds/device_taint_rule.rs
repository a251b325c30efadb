//! DeviceTaintRule: a taint that an administrator adds to devices of any driver.

use crate::kind::{METADATA_RESET_FIELDS, drop_status, keep_metadata_and_spec, keep_status};
use crate::validation::checks::dns_label;
use crate::validation::device;
use crate::validation::storage::driver_name;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    default,
    prepare_create: drop_status,
    prepare_update,
    prepare_status_update: keep_metadata_and_spec,
    validate: |rule| validate(rule, None),
    validate_update: |new, old| validate(new, Some(old)),
    validate_status_update: |new, _| validate_status(new),
    counts_generation: true,
    reset_fields: METADATA_RESET_FIELDS,
    table: &crate::tables::resource::DEVICE_TAINT_RULE,
    ..Kind::new("resource.k8s.io", "v1beta2", "DeviceTaintRule", "devicetaintrules", Scope::Cluster)
};

const CONDITIONS_MAX: usize = 8;

fn default(rule: &mut Value) {
    if let Some(taint) = rule.at_mut("spec.taint") {
        device::default_taint(taint);
    }
}

/// Sets the time of a taint to the present if its effect changes without a new time.
fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    let before = old.at("spec.taint");
    let Some(taint) = new.at_mut("spec.taint") else { return };
    if taint.text("effect") != before.text("effect") && taint.text("timeAdded") == before.text("timeAdded") {
        taint.unset("timeAdded");
        device::default_taint(taint);
    }
}

fn validate(rule: &Value, old: Option<&Value>) -> ErrorList {
    let path = Path::new("spec");
    let selector_path = path.child("deviceSelector");
    let selector = rule.at("spec.deviceSelector");
    let mut errors = Vec::new();
    if let Some(driver) = selector.opt_text("driver") {
        errors.extend(driver_name(driver, &selector_path.child("driver")));
    }
    if let Some(pool) = selector.opt_text("pool") {
        errors.extend(device::pool_name(pool, &selector_path.child("pool")));
    }
    if let Some(name) = selector.opt_text("device") {
        errors.extend(dns_label(&selector_path.child("device"), name));
    }
    let old = old.map(|old| old.at("spec.taint"));
    errors.extend(device::taint(rule.at("spec.taint"), old, &path.child("taint")));
    errors
}

fn validate_status(rule: &Value) -> ErrorList {
    let conditions = rule.field("status").items("conditions");
    let path = Path::new("status");
    let path = path.child("conditions");
    let mut errors = names::validate_conditions(conditions, &path);
    if conditions.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(&path, conditions.len(), CONDITIONS_MAX));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(effect: &str) -> Value {
        json!({"metadata": {"name": "r"}, "spec": {
            "deviceSelector": {"driver": "gpu.example.com", "pool": "a/b", "device": "gpu-0"},
            "taint": {"key": "example.com/broken", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"},
        }})
    }

    fn fields(errors: ErrorList) -> Vec<String> {
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn selector_and_taint_are_validated() {
        assert_eq!(fields(validate(&rule("NoSchedule"), None)), Vec::<String>::new());
        let mut wrong = rule("Sometimes");
        wrong["spec"]["deviceSelector"] = json!({"driver": "_", "pool": "", "device": "A"});
        wrong["spec"]["taint"]["key"] = json!("");
        let want = [
            "spec.deviceSelector.driver",
            "spec.deviceSelector.pool",
            "spec.deviceSelector.device",
            "spec.taint.key",
            "spec.taint.effect",
        ];
        let mut found = fields(validate(&wrong, None));
        found.dedup();
        assert_eq!(found, want);
        // An unknown effect of a newer release is retained.
        let known = rule("Sometimes");
        assert_eq!(fields(validate(&known, Some(&known))), Vec::<String>::new());
    }

    #[test]
    fn changed_effect_sets_time_unless_client_set_it() {
        let old = rule("NoSchedule");
        let mut new = rule("NoExecute");
        prepare_update(&mut new, &old);
        assert_ne!(new["spec"]["taint"]["timeAdded"], old["spec"]["taint"]["timeAdded"]);
        let mut own = rule("NoExecute");
        own["spec"]["taint"]["timeAdded"] = json!("2026-02-02T00:00:00Z");
        prepare_update(&mut own, &old);
        assert_eq!(own["spec"]["taint"]["timeAdded"], "2026-02-02T00:00:00Z");
        let mut same = rule("NoSchedule");
        prepare_update(&mut same, &old);
        assert_eq!(same, old);
    }

    #[test]
    fn more_than_eight_conditions_are_rejected() {
        let condition = |index: usize| {
            json!({"type": format!("C{index}"), "status": "True", "reason": "R",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""})
        };
        let with = |count| json!({"status": {"conditions": (0..count).map(condition).collect::<Vec<_>>()}});
        assert_eq!(validate_status(&with(8)), Vec::new());
        assert_eq!(fields(validate_status(&with(9))), ["status.conditions"]);
    }
}
