//! Admission policies and their bindings, validating and mutating.

use super::admission_rule::{FAILURE_POLICIES, default_match_resources, match_conditions, match_resources};
use super::checks::{invalid_each, one_of};
use super::expression::Scope;
use super::label_selector::validate_label_selector;
use super::values::{same, strings};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::BTreeSet;

/// Fields of both kinds of policy: failure policy, params, constraints. `extra` checks more of the constraints before
/// match conditions; variables are declared in `scope`.
pub fn spec_head(
    spec: &Value,
    ignore_match_conditions: bool,
    scope: &mut Scope,
    path: &Path<'_>,
    extra: impl Fn(&Value, &Path<'_>) -> ErrorList,
) -> ErrorList {
    let mut errors = Vec::new();
    match spec.opt_text("failurePolicy") {
        Some(policy) => errors.extend(one_of(&path.child("failurePolicy"), policy, FAILURE_POLICIES)),
        None => errors.push(FieldError::required(&path.child("failurePolicy"), "")),
    }
    if spec.has("paramKind") {
        errors.extend(param_kind(spec.field("paramKind"), &path.child("paramKind")));
    }
    let constraints_path = path.child("matchConstraints");
    if spec.has("matchConstraints") {
        let constraints = spec.field("matchConstraints");
        errors.extend(match_resources(constraints, &constraints_path));
        // Without a rule the type of the object is unknown.
        if constraints.items("resourceRules").is_empty() {
            errors.push(FieldError::required(&constraints_path.child("resourceRules"), ""));
        }
        errors.extend(extra(constraints, &constraints_path));
    } else {
        errors.push(FieldError::required(&constraints_path, ""));
    }
    if !ignore_match_conditions {
        errors.extend(match_conditions(spec, &path.child("matchConditions")));
    }
    let variables_path = path.child("variables");
    for (index, variable) in spec.items("variables").iter().enumerate() {
        errors.extend(self::variable(variable, scope, &variables_path.index(index)));
    }
    errors
}

/// Match conditions are not validated again if they and their params are unchanged.
pub fn keeps_match_conditions(new: &Value, old: &Value) -> bool {
    let (new, old) = (new.field("spec"), old.field("spec"));
    ["paramKind", "matchConditions"].iter().all(|field| same(new.field(field), old.field(field)))
}

fn param_kind(kind: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let version_path = path.child("apiVersion");
    let api_version = kind.text("apiVersion");
    let (group, version) = match api_version.split_once('/') {
        Some(parts) => parts,
        None => ("", api_version),
    };
    if api_version.is_empty() {
        errors.push(FieldError::required(&version_path, ""));
    } else if version.contains('/') {
        let detail = format!("unexpected GroupVersion string: {api_version}");
        errors.push(FieldError::invalid_str(&version_path, api_version, detail));
    } else {
        if !group.is_empty() {
            errors.extend(joined(&version_path, group, names::dns_subdomain(group, false)));
        }
        if version.is_empty() {
            errors.push(FieldError::invalid_str(&version_path, api_version, "version must be specified"));
        } else {
            errors.extend(joined(&version_path, version, names::dns1035_label(version, false)));
        }
    }
    let (kind, path) = (kind.text("kind"), path.child("kind"));
    if kind.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return errors;
    }
    let found = names::dns1035_label(&kind.to_lowercase(), false);
    if !found.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", found.join(","));
        errors.push(FieldError::invalid_str(&path, kind, detail));
    }
    errors
}

/// Joins all errors of a string into one.
fn joined(path: &Path<'_>, value: &str, problems: Vec<String>) -> Option<FieldError> {
    (!problems.is_empty()).then(|| FieldError::invalid_str(path, value, problems.join(",")))
}

fn variable(variable: &Value, scope: &mut Scope, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let name = variable.text("name");
    if name.trim().is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name is not specified"));
    } else if !is_cel_identifier(name) {
        errors.push(FieldError::invalid_str(&path.child("name"), name, "must be a valid CEL identifier"));
    }
    let (text, path) = (variable.text("expression"), path.child("expression"));
    if text.trim().is_empty() {
        errors.push(FieldError::required(&path, "expression is not specified"));
    } else {
        errors.extend(scope.variable(name, text, &path));
    }
    errors
}

fn is_cel_identifier(name: &str) -> bool {
    let word = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    !name.is_empty()
        && !name.as_bytes()[0].is_ascii_digit()
        && name.bytes().all(word)
        && !expressions::openapi::RESERVED.contains(&name)
}

/// Spec of a binding, without the fields of validating ones.
pub fn binding_spec(spec: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let policy = spec.text("policyName");
    if policy.is_empty() {
        errors.push(FieldError::required(&path.child("policyName"), ""));
    } else {
        errors.extend(invalid_each(&path.child("policyName"), policy, names::dns_subdomain(policy, false)));
    }
    errors.extend(param_ref(spec.field("paramRef"), &path.child("paramRef")));
    errors.extend(match_resources(spec.field("matchResources"), &path.child("matchResources")));
    errors
}

fn param_ref(reference: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if reference.is_null() {
        return errors;
    }
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let (name, has_selector) = (reference.text("name"), reference.has("selector"));
    let (name_path, selector_path) = (path.child("name"), path.child("selector"));
    if !name.is_empty() {
        errors.extend(invalid_each(&name_path, name, names::path_segment_name(name, false)));
        if has_selector {
            errors.push(FieldError::forbidden(&name_path, EXCLUSIVE));
        }
    }
    if has_selector {
        errors.extend(validate_label_selector(reference.field("selector"), false, &selector_path));
        if !name.is_empty() {
            errors.push(FieldError::forbidden(&selector_path, EXCLUSIVE));
        }
    }
    if name.is_empty() && !has_selector {
        errors.push(FieldError::required(path, "one of name or selector must be specified"));
    }
    let action_path = path.child("parameterNotFoundAction");
    match reference.text("parameterNotFoundAction") {
        "" => errors.push(FieldError::required(&action_path, "")),
        action => errors.extend(one_of(&action_path, action, &["Deny", "Allow"])),
    }
    errors
}

/// Validation actions of a validating binding.
pub fn validation_actions(spec: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, action) in strings(spec.items("validationActions")).enumerate() {
        let path = path.index(index);
        errors.extend(one_of(&path, action, &["Audit", "Deny", "Warn"]));
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(&path, &action.into()));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information \
                      in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(path, spec.field("validationActions"), detail));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
    errors
}

/// Sets defaults of a policy.
pub fn default_policy(policy: &mut Value) {
    let spec = policy.child_mut("spec");
    spec.default_to("failurePolicy", "Fail");
    if let Some(constraints) = spec.field_mut("matchConstraints") {
        default_match_resources(constraints);
    }
}

/// Sets defaults of a binding.
pub fn default_binding(binding: &mut Value) {
    if let Some(resources) = binding.at_mut("spec.matchResources") {
        default_match_resources(resources);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cel_identifier_rejects_reserved_words_and_symbols() {
        for (name, ok) in [("a1", true), ("_x", true), ("1a", false), ("in", false), ("a-b", false)] {
            assert_eq!(is_cel_identifier(name), ok, "{name}");
        }
    }

    #[test]
    fn param_kind_is_validated() {
        let cases = [
            (json!({"apiVersion": "v1", "kind": "ConfigMap"}), 0),
            (json!({"apiVersion": "a/b/c", "kind": "K"}), 1),
            (json!({"apiVersion": "example.com/", "kind": "K"}), 1),
            (json!({}), 2),
        ];
        for (kind, count) in cases {
            assert_eq!(param_kind(&kind, &Path::new("p")).len(), count, "{kind}");
        }
    }
}
