//! Counters in the status of workload kinds.

use crate::pod_spec::checks::non_negative_field;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// Rejects negative counters.
pub fn validate_counters(status: &Value, names: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    for name in names {
        non_negative_field(status, name, path, errors);
    }
}

/// Rejects counters above `status.replicas`.
pub fn validate_at_most_replicas(status: &Value, names: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    for name in names {
        validate_at_most(status, name, "replicas", "cannot be greater than status.replicas", path, errors);
    }
}

/// Rejects more available than ready replicas.
pub fn validate_available(status: &Value, detail: &str, path: &Path<'_>, errors: &mut ErrorList) {
    validate_at_most(status, "availableReplicas", "readyReplicas", detail, path, errors);
}

fn validate_at_most(
    status: &Value,
    name: &str,
    limit: &str,
    detail: &str,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let value = status.int(name);
    if value > status.int(limit) {
        errors.push(FieldError::invalid(&path.child(name), &Value::from(value), detail));
    }
}

/// Rejects a decrease of `collisionCount`.
pub fn validate_collisions(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let (Some(new), Some(old)) = (new.opt_int("collisionCount"), old.opt_int("collisionCount"))
        && new < old
    {
        let path = path.child("collisionCount");
        errors.push(FieldError::invalid(&path, &Value::from(new), "cannot be decremented"));
    }
}
