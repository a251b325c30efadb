//! Matching of admission webhooks and policies: rules, match resources, match conditions.

use super::checks::{invalid_each, one_of};
use super::expression;
use super::label_selector::validate_label_selector;
use super::values::{contains, strings};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::BTreeSet;

pub const FAILURE_POLICIES: &[&str] = &["Fail", "Ignore"];
pub const REINVOCATION_POLICIES: &[&str] = &["IfNeeded", "Never"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MATCH_CONDITIONS_MAX: usize = 64;

pub fn match_policy(path: &Path<'_>, policy: &str) -> ErrorList {
    one_of(path, policy, &["Equivalent", "Exact"])
}

/// One of the `rules` of a webhook or the `resourceRules` of a policy.
pub fn rule_with_operations(rule: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let operations_path = path.child("operations");
    let operations = rule.items("operations");
    if operations.is_empty() {
        errors.push(FieldError::required(&operations_path, ""));
    }
    errors.extend(lone_wildcard(rule, "operations", "operations", path));
    for (index, operation) in strings(operations).enumerate() {
        errors.extend(one_of(&operations_path.index(index), operation, OPERATIONS));
    }
    for (field, noun) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        if rule.items(field).is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        }
        errors.extend(lone_wildcard(rule, field, noun, path));
    }
    let versions_path = path.child("apiVersions");
    for (index, version) in strings(rule.items("apiVersions")).enumerate() {
        if version.is_empty() {
            errors.push(FieldError::required(&versions_path.index(index), ""));
        }
    }
    errors.extend(resources(rule.field("resources"), &path.child("resources")));
    if let Some(scope) = rule.opt_text("scope") {
        errors.extend(one_of(&path.child("scope"), scope, &["*", "Cluster", "Namespaced"]));
    }
    errors
}

/// `*` matches all, so it must be the only item.
fn lone_wildcard(rule: &Value, field: &str, noun: &str, path: &Path<'_>) -> Option<FieldError> {
    let items = rule.items(field);
    (items.len() > 1 && contains(items, "*")).then(|| {
        let detail = format!("if '*' is present, must not specify other {noun}");
        FieldError::invalid(&path.child(field), rule.field(field), detail)
    })
}

/// Resources and subresources, with wildcards on either side of the slash.
fn resources(resources: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let items = resources.as_array().map_or(&[][..], Vec::as_slice);
    if items.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let mut all_subresources_of = BTreeSet::new();
    let mut subresource_of_all = BTreeSet::new();
    let mut last_is_plain_resource = false;
    for (index, resource) in strings(items).enumerate() {
        let path = path.index(index);
        if resource.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let Some((parent, subresource)) = resource.split_once('/') else {
            // Only the last one without a slash counts, as in Kubernetes.
            last_is_plain_resource = resource != "*";
            continue;
        };
        if all_subresources_of.contains(parent) {
            let detail = format!("if '{parent}/*' is present, must not specify {resource}");
            errors.push(FieldError::invalid_str(&path, resource, detail));
        }
        if subresource_of_all.contains(subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {resource}");
            errors.push(FieldError::invalid_str(&path, resource, detail));
        }
        if subresource == "*" {
            all_subresources_of.insert(parent);
        }
        if parent == "*" {
            subresource_of_all.insert(subresource);
        }
    }
    if items.len() > 1 && contains(items, "*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(path, resources, detail));
    }
    if contains(items, "*") && last_is_plain_resource {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, resources, detail));
    }
    errors
}

/// The `matchConstraints` of a policy or the `matchResources` of a binding.
pub fn match_resources(resources: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if resources.is_null() {
        return errors;
    }
    match resources.opt_text("matchPolicy") {
        Some(policy) => errors.extend(match_policy(&path.child("matchPolicy"), policy)),
        None => errors.push(FieldError::required(&path.child("matchPolicy"), "")),
    }
    for field in ["namespaceSelector", "objectSelector"] {
        if resources.has(field) {
            errors.extend(validate_label_selector(resources.field(field), false, &path.child(field)));
        } else {
            errors.push(FieldError::required(&path.child(field), ""));
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        let path = path.child(field);
        for (index, rule) in resources.items(field).iter().enumerate() {
            errors.extend(named_rule(rule, &path.index(index)));
        }
    }
    errors
}

/// A mutating policy cannot match deletions, which have no object to change.
pub fn mutating_operations(constraints: &Value, path: &Path<'_>) -> ErrorList {
    let path = path.child("resourceRules");
    let path = path.child("operations");
    let operations =
        constraints.items("resourceRules").iter().flat_map(|rule| strings(rule.items("operations")));
    operations.flat_map(|operation| one_of(&path, operation, &["*", "CONNECT", "CREATE", "UPDATE"])).collect()
}

fn named_rule(rule: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    let names_path = path.child("resourceNames");
    for (index, name) in strings(rule.items("resourceNames")).enumerate() {
        let path = names_path.index(index);
        errors.extend(invalid_each(&path, name, names::path_segment_name(name, false)));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, &name.into()));
        }
    }
    errors.extend(rule_with_operations(rule, path));
    errors
}

/// The `matchConditions` of a webhook or of a policy's spec.
pub fn match_conditions(owner: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let conditions = owner.items("matchConditions");
    if conditions.len() > MATCH_CONDITIONS_MAX {
        errors.push(FieldError::too_many(path, conditions.len(), MATCH_CONDITIONS_MAX));
    }
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        let text = condition.text("expression");
        if text.trim().is_empty() {
            errors.push(FieldError::required(&path.child("expression"), ""));
        } else {
            // Conditions of a policy may refer to its params, too.
            let has_params = owner.has("paramKind");
            errors.extend(expression::condition(text.trim(), has_params, &path.child("expression")));
        }
        let (name, path) = (condition.text("name"), path.child("name"));
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        errors.extend(names::validate_label_name(name, &path));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, &name.into()));
        }
    }
    errors
}

/// Sets the default scope of a rule: all.
pub fn default_scopes(owner: &mut Value, field: &str) {
    for rule in owner.items_mut(field) {
        rule.default_to("scope", "*");
    }
}

/// Sets defaults of match resources.
pub fn default_match_resources(resources: &mut Value) {
    resources.default_to("matchPolicy", "Equivalent");
    resources.default_to("namespaceSelector", Value::Object(Default::default()));
    resources.default_to("objectSelector", Value::Object(Default::default()));
    default_scopes(resources, "resourceRules");
    default_scopes(resources, "excludeResourceRules");
}

/// Names reserved for static configuration files.
pub fn warnings(object: &Value) -> Vec<String> {
    const RESERVED: &str = ".static.k8s.io";
    if !machinery::meta::name(object).ends_with(RESERVED) {
        return Vec::new();
    }
    vec![format!(
        "metadata.name: names ending with {RESERVED:?} are reserved for static manifest-based configurations \
         and cannot be managed via the API"
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resource_wildcards_are_validated() {
        let cases = [
            (json!(["pods", "pods/status"]), vec![]),
            (json!([]), vec!["r: Required value"]),
            (
                json!(["pods/*", "pods/log"]),
                vec!["r[1]: Invalid value: \"pods/log\": if 'pods/*' is present, must not specify pods/log"],
            ),
            (
                json!(["*/log", "pods/log"]),
                vec!["r[1]: Invalid value: \"pods/log\": if '*/log' is present, must not specify pods/log"],
            ),
            (
                json!(["*", "pods"]),
                vec![
                    "r: Invalid value: [\"*\",\"pods\"]: if '*' is present, must not specify other resources \
                 without subresources",
                ],
            ),
        ];
        for (list, expected) in cases {
            let errors: Vec<String> =
                resources(&list, &Path::new("r")).iter().map(FieldError::to_string).collect();
            assert_eq!(errors, expected, "{list}");
        }
    }
}
