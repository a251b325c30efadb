//! ClusterRole: own rules, or rules aggregated from other roles by label.

use crate::validation::label_selector::validate_label_selector;
use crate::validation::rbac;
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::selector::LabelSelector;

pub static KIND: Kind = Kind {
    validate_name: rbac::name,
    validate: |role| validate(role, false),
    validate_update: |new, old| {
        let mut errors = validate(new, has_invalid_selector(old));
        errors.extend(KIND.metadata_update_errors(new, old));
        errors
    },
    create_on_update: true,
    metadata_on_update: &[MetadataCheck::New],
    ..Kind::new(rbac::GROUP, "v1", "ClusterRole", "clusterroles", Scope::Cluster)
};

/// Tolerates violations that an older version accepted.
fn has_invalid_selector(old: &Value) -> bool {
    let selectors = old.field("aggregationRule").items("clusterRoleSelectors");
    selectors.iter().any(|selector| !validate_label_selector(selector, false, &Path::ROOT).is_empty())
}

fn validate(role: &Value, allow_invalid_values: bool) -> ErrorList {
    let mut errors = rbac::rules(role, false);
    if role.has("aggregationRule") {
        let path = Path::new("aggregationRule");
        let path = path.child("clusterRoleSelectors");
        let selectors = role.field("aggregationRule").items("clusterRoleSelectors");
        if selectors.is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required(&path, detail));
        }
        for (index, selector) in selectors.iter().enumerate() {
            let path = path.index(index);
            errors.extend(validate_label_selector(selector, allow_invalid_values, &path));
            if LabelSelector::from_object(Some(selector)).is_err() {
                errors.push(FieldError::invalid(&path, &Value::Null, "invalid label selector."));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn aggregation_selector_is_validated() {
        for (selector, errors) in [
            (json!({"matchLabels": {"a": "b"}}), 0),
            // One error for the value, one for the selector.
            (json!({"matchLabels": {"a": "Not a label!"}}), 2),
        ] {
            let role = json!({"aggregationRule": {"clusterRoleSelectors": [selector]}});
            assert_eq!(validate(&role, false).len(), errors, "{role}");
        }
    }
}
