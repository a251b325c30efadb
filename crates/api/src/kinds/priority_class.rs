//! PriorityClass.

use crate::validation::checks::required_one_of;
use crate::validation::values::unchanged;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};

pub static KIND: Kind = Kind {
    default: |class| class.default_to("preemptionPolicy", "PreemptLowerPriority"),
    validate,
    validate_update,
    // The generation is always 1: allowed changes are not counted.
    prepare_create: |class| class.child_mut("metadata").set("generation", 1),
    table: &crate::tables::policy::PRIORITY_CLASS,
    ..Kind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", Scope::Cluster)
};

/// Maximum value of user classes; larger values are reserved for the system.
const USER_VALUE_MAX: i64 = 1_000_000_000;
/// System classes and their values.
const SYSTEM_CLASSES: &[(&str, i64)] =
    &[("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

fn validate(class: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let name = meta::name(class);
    let value = class.int("value");
    if name.starts_with("system-") {
        if let Some(problem) = system_problem(name, value, class.flag("globalDefault")) {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {problem}"
            );
            let path = Path::new("metadata");
            errors.push(FieldError::forbidden(&path.child("name"), detail));
        }
    } else if value > USER_VALUE_MAX {
        let detail = format!("maximum allowed value of a user defined priority is {USER_VALUE_MAX}");
        errors.push(FieldError::forbidden(&Path::new("value"), detail));
    }
    if let Some(policy) = class.opt_text("preemptionPolicy") {
        let supported = ["PreemptLowerPriority", "Never"];
        errors.extend(required_one_of(&Path::new("preemptionPolicy"), policy, &supported));
    }
    errors
}

fn system_problem(name: &str, value: i64, global_default: bool) -> Option<String> {
    let Some((_, fixed)) = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) else {
        return Some(format!("{name} is not a known system priority class"));
    };
    if value != *fixed {
        return Some(format!("value of {name} PriorityClass must be {fixed}"));
    }
    global_default.then(|| format!("globalDefault of {name} PriorityClass must be false"))
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    if new.int("value") != old.int("value") {
        errors.push(FieldError::forbidden(&Path::new("value"), "may not be changed in an update."));
    }
    let field = "preemptionPolicy";
    errors.extend(unchanged(&Path::new(field), new.field(field), old.field(field)));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn system_names_are_reserved() {
        let cases = [
            ("system-node-critical", 2_000_001_000, 0),
            ("system-node-critical", 1, 1),
            ("system-x", 1, 1),
            ("x", 1_000_000_001, 1),
            ("x", 1_000_000_000, 0),
        ];
        for (name, value, count) in cases {
            let class = json!({"metadata": {"name": name}, "value": value});
            assert_eq!(validate(&class).len(), count, "{class}");
        }
    }
}
