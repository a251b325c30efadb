//! ResourceQuota.

use crate::validation::resource_names::{
    is_standard_for_quota, quantities, quantity_of, quantity_value, quota_resource_name, round_up_to_milli,
};
use crate::value::{Fields, texts};
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create: |quota| quota.set("status", json!({})),
    prepare_update: crate::kind::keep_status,
    validate: |quota| {
        let mut errors = validate_spec(quota.field("spec"));
        errors.extend(validate_amounts(quota.field("status"), "status", &["hard", "used"]));
        errors
    },
    validate_update,
    validate_status_update,
    warnings,
    table: &crate::tables::config::RESOURCE_QUOTA,
    returns_deleted: true,
    ..Kind::new("", "v1", "ResourceQuota", "resourcequotas", Scope::Namespaced)
};

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];

fn default(quota: &mut Value) {
    for (part, list) in [("spec", "hard"), ("status", "hard"), ("status", "used")] {
        if let Some(part) = quota.field_mut(part) {
            round_up_to_milli(part, list);
        }
    }
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate_spec(new.field("spec"));
    let scopes = |quota: &'_ Value| -> Vec<String> {
        let mut scopes: Vec<String> = texts(quota.field("spec").items("scopes")).map(str::to_owned).collect();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    };
    if scopes(new) != scopes(old) {
        let path = Path::new("spec");
        let shown = new.field("spec").field("scopes");
        errors.push(FieldError::invalid(&path.child("scopes"), shown, "field is immutable"));
    }
    errors
}

fn validate_status_update(new: &Value, _: &Value) -> ErrorList {
    let mut errors = Vec::new();
    if meta::resource_version(new).is_empty() {
        errors.push(FieldError::required(&Path::new("resourceVersion"), ""));
    }
    errors.extend(validate_amounts(new.field("status"), "status", &["hard", "used"]));
    errors
}

fn validate_spec(spec: &Value) -> ErrorList {
    let mut errors = validate_amounts(spec, "spec", &["hard"]);
    errors.extend(validate_scopes(spec));
    errors.extend(validate_scope_selector(spec));
    errors
}

fn validate_amounts(part: &Value, name: &str, lists: &[&str]) -> ErrorList {
    let path = Path::new(name);
    let mut errors = Vec::new();
    for list in lists {
        let path = path.child(list);
        for (resource, amount) in quantities(part, list) {
            let path = path.key(resource);
            errors.extend(quota_resource_name(&path, resource));
            errors.extend(quantity_value(&path, resource, &amount));
        }
    }
    errors
}

fn validate_scopes(spec: &Value) -> ErrorList {
    let path = Path::new("spec");
    let path = path.child("scopes");
    let scopes: Vec<&str> = texts(spec.items("scopes")).collect();
    let reject = |detail: &str| FieldError::invalid(&path, spec.field("scopes"), detail);
    let mut errors = Vec::new();
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.push(reject("unsupported scope"));
        }
        errors.extend(misapplied(spec, scope).map(|()| reject("unsupported scope applied to resource")));
    }
    errors.extend(conflicts(&scopes).map(|()| reject("conflicting scopes")));
    errors
}

/// One error for every hard limit that the scope does not apply to.
fn misapplied(spec: &Value, scope: &str) -> impl Iterator<Item = ()> {
    let hard = spec.entries("hard").into_iter().flatten().map(|(name, _)| name.as_str());
    hard.filter(move |name| is_standard_for_quota(name) && !scope_fits(scope, name)).map(|_| ())
}

fn scope_fits(scope: &str, resource: &str) -> bool {
    let compute = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"]
        .contains(&resource);
    match scope {
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => resource == "pods" || compute,
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

/// One error for every pair of mutually exclusive scopes.
fn conflicts(scopes: &[&str]) -> impl Iterator<Item = ()> {
    let pairs = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];
    pairs.into_iter().filter(|pair| pair.iter().all(|scope| scopes.contains(scope))).map(|_| ())
}

fn validate_scope_selector(spec: &Value) -> ErrorList {
    let selector = spec.field("scopeSelector");
    let path = Path::new("spec");
    let path = path.child("scopeSelector");
    let path = path.child("matchExpressions");
    let mut errors = Vec::new();
    let mut scopes = Vec::new();
    for requirement in selector.items("matchExpressions") {
        let scope = requirement.text("scopeName");
        let operator = requirement.text("operator");
        let operator_path = path.child("operator");
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid_str(&path.child("scopeName"), scope, "unsupported scope"));
        }
        errors.extend(misapplied(spec, scope).map(|()| {
            let detail = "unsupported scope applied to resource";
            FieldError::invalid_shown(&path, show_selector(selector), detail)
        }));
        let exists_only = matches!(
            scope,
            "BestEffort" | "NotBestEffort" | "Terminating" | "NotTerminating" | "CrossNamespacePodAffinity"
        );
        if exists_only && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                          ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(FieldError::invalid_str(&operator_path, operator, detail));
        }
        let values = requirement.items("values");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail =
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(&path.child("values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail =
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(FieldError::invalid(&path.child("values"), requirement.field("values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid_named(
                    &operator_path,
                    other,
                    "not a valid selector operator",
                ));
            }
        }
        scopes.push(scope);
    }
    errors.extend(
        conflicts(&scopes).map(|()| FieldError::invalid(&path, spec.field("scopes"), "conflicting scopes")),
    );
    errors
}

/// The selector under Go's field names, as in messages.
fn show_selector(selector: &Value) -> String {
    let requirement = |requirement: &Value| {
        format!(
            r#"{{"ScopeName":{},"Operator":{},"Values":{}}}"#,
            requirement.field("scopeName"),
            requirement.field("operator"),
            requirement.field("values"),
        )
    };
    let requirements: Vec<String> = selector.items("matchExpressions").iter().map(requirement).collect();
    format!(r#"{{"MatchExpressions":[{}]}}"#, requirements.join(","))
}

/// Warns about requests above limits, which are allowed. Only on create.
fn warnings(quota: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let spec = quota.field("spec");
    let hard = |name: &str| quantity_of(spec, "hard", name);
    let mut warnings = Vec::new();
    for resource in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let mut request_name = format!("requests.{resource}");
        let mut request = hard(&request_name);
        if request.is_none() && matches!(resource, "cpu" | "memory") {
            request = hard(resource);
            request_name = resource.to_owned();
        }
        let limit_name = format!("limits.{resource}");
        if let (Some(request), Some(limit)) = (request, hard(&limit_name))
            && request > limit
        {
            warnings.push(format!(
                "ResourceQuota {request_name} ({request}) should be less than {limit_name} ({limit})"
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_must_match_resources() {
        let cases = [
            (json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]}), 0),
            (json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}), 1),
            (json!({"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]}), 1),
            (json!({"hard": {"pods": "1.5"}}), 1),
            (json!({"hard": {"x": "1"}}), 2),
            (
                json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}),
                1,
            ),
            (
                json!({"scopeSelector": {"matchExpressions": [{"scopeName": "BestEffort", "operator": "Exists"}]}}),
                0,
            ),
        ];
        for (spec, errors) in cases {
            assert_eq!(validate_spec(&spec).len(), errors, "{spec}");
        }
    }

    #[test]
    fn requests_above_limits_return_warning() {
        let quota = json!({"spec": {"hard": {"requests.cpu": "2", "limits.cpu": "1"}}});
        assert_eq!(
            warnings(&quota, None),
            ["ResourceQuota requests.cpu (2) should be less than limits.cpu (1)"]
        );
    }
}
