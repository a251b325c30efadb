//! ClusterRole: rules, given or gathered from other roles by their labels.

use crate::tables::label_selector_text;
use crate::validation::label_selector::validate_label_selector;
use crate::validation::rbac;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub static KIND: Kind = Kind {
    validate_name: rbac::name,
    validate: |role| validate(role, false),
    validate_update: |new, old| validate(new, has_invalid_selector(old)),
    create_on_update: true,
    ..Kind::new(rbac::GROUP, "v1", "ClusterRole", "clusterroles", Scope::Cluster)
};

/// An update may keep what an older version let in.
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
            if label_selector_text(Some(selector)).is_none() {
                errors.push(FieldError::invalid(&path, &Value::Null, "invalid label selector."));
            }
        }
    }
    errors
}
