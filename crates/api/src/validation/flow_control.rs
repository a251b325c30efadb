//! Validation shared by flow schemas and priority levels.

use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use std::collections::BTreeSet;

/// Conditions of the status: each with a unique type.
pub fn status_conditions(object: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let conditions_path = path.child("conditions");
    let mut seen = BTreeSet::new();
    for (index, condition) in object.field("status").items("conditions").iter().enumerate() {
        let path = conditions_path.index(index);
        let kind = condition.text("type");
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), &kind.into()));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(&path.child("type"), ""));
        }
    }
    errors
}
