//! Lease.

use crate::validation::checks::{invalid_each, one_of};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

pub static KIND: Kind = Kind {
    any_finalizer: true,
    prepare_create: |lease| drop_coordination(lease, &Value::Null),
    prepare_update: drop_coordination,
    validate,
    validate_update: |new, _| validate(new),
    create_on_update: true,
    unconditional_update: false,
    table: &crate::tables::node::LEASE,
    ..Kind::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced)
};

/// Coordinated leader election is disabled: its fields are retained only if the old object has them.
fn drop_coordination(new: &mut Value, old: &Value) {
    let Some(spec) = new.field_mut("spec") else {
        return;
    };
    for field in ["strategy", "preferredHolder"] {
        if !old.field("spec").has(field) {
            spec.unset(field);
        }
    }
}

fn validate(lease: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let (path, spec) = (Path::new("spec"), lease.field("spec"));
    if let Some(seconds) = spec.opt_int("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        let path = path.child("leaseDurationSeconds");
        errors.push(FieldError::invalid(&path, &seconds.into(), "must be greater than 0"));
    }
    if let Some(transitions) = spec.opt_int("leaseTransitions").filter(|transitions| *transitions < 0) {
        let path = path.child("leaseTransitions");
        errors.push(FieldError::invalid(&path, &transitions.into(), "must be greater than or equal to 0"));
    }
    if let Some(strategy) = spec.opt_text("strategy") {
        errors.extend(strategy_errors(&path.child("strategy"), strategy));
    }
    if !spec.text("preferredHolder").is_empty() && spec.text("strategy").is_empty() {
        let detail = "may only be specified if `strategy` is defined";
        errors.push(FieldError::forbidden(&path.child("preferredHolder"), detail));
    }
    errors
}

/// A strategy without a domain must be one of Kubernetes' own; others are qualified names.
pub fn strategy_errors(path: &Path<'_>, strategy: &str) -> ErrorList {
    // The path repeats the field name, as in Kubernetes.
    let path = path.child("strategy");
    if strategy.contains('/') {
        return invalid_each(&path, strategy, names::qualified_name(strategy));
    }
    one_of(&path, strategy, &["OldestEmulationVersion"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_and_transitions_are_validated() {
        let lease = json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}});
        let errors: Vec<String> = validate(&lease).iter().map(FieldError::to_string).collect();
        assert_eq!(
            errors,
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn coordinated_election_fields_are_dropped() {
        let mut lease = json!({"spec": {"strategy": "OldestEmulationVersion", "holderIdentity": "h"}});
        (KIND.prepare_create)(&mut lease);
        assert_eq!(lease, json!({"spec": {"holderIdentity": "h"}}));
    }
}
