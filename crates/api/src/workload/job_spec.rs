//! Spec of a job, also in a cron job's template.

use super::indexes;
use super::template;
use crate::pod_spec::checks::{non_negative, one_of, qualified_name};
use crate::pod_spec::layout;
use crate::value::Fields;
use machinery::field::{ErrorKind, ErrorList, FieldError, Path};
use machinery::{Value, names};

const MAX_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
/// Number of completions above which the limits below apply.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_PARALLELISM_FOR_MANY: i64 = 10_000;
const MAX_FAILED_INDEXES_FOR_MANY: i64 = 10_000;
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_MANAGED_BY: usize = 63;
const MAX_SUCCEEDED_INDEXES: usize = 64 * 1024;

/// An error without a value.
pub fn invalid_without_value(path: &Path<'_>, detail: &str) -> FieldError {
    FieldError { kind: ErrorKind::Invalid, field: path.to_string(), value: None, detail: detail.to_owned() }
}

/// Validates everything but the selector. `old` is the stored pod template.
pub fn validate_job_spec(spec: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut ErrorList) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        non_negative(spec.int(name), &path.child(name), errors);
    }
    if spec.has("maxFailedIndexes") && !spec.has("backoffLimitPerIndex") {
        let detail = "when maxFailedIndexes is specified";
        errors.push(FieldError::required(&path.child("backoffLimitPerIndex"), detail));
    }
    if let Some(manager) = spec.opt_text("managedBy") {
        let path = path.child("managedBy");
        errors.extend(names::domain_prefixed_path(&path, manager));
        if manager.len() > MAX_MANAGED_BY {
            errors.push(FieldError::too_long(&path, MAX_MANAGED_BY));
        }
    }
    validate_completion_mode(spec, path, errors);
    let failure = spec.field("podFailurePolicy");
    if !failure.is_null() {
        validate_failure_policy(spec, failure, &path.child("podFailurePolicy"), errors);
    }
    let success = spec.field("successPolicy");
    if !success.is_null() {
        let path = path.child("successPolicy");
        if spec.text("completionMode") == "Indexed" {
            validate_success_policy(spec, success, &path, errors);
        } else {
            let shown = layout::internal_json("SuccessPolicy", success);
            errors.push(FieldError::invalid_shown(&path, shown, "requires indexed completion mode"));
        }
    }
    if let Some(policy) = spec.opt_text("podReplacementPolicy") {
        let supported: &[&str] =
            if failure.is_null() { &["Failed", "TerminatingOrFailed"] } else { &["Failed"] };
        one_of(policy, supported, &path.child("podReplacementPolicy"), errors);
    }
    let template_path = path.child("template");
    template::validate_pod_template(spec.field("template"), old, &template_path, errors);
    validate_restart_policy(spec, &template_path, errors);
}

fn validate_restart_policy(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let spec_path = path.child("spec");
    let path = spec_path.child("restartPolicy");
    match spec.at("template.spec").text("restartPolicy") {
        "Always" | "" => {
            errors.push(FieldError::required(&path, "valid values: \"OnFailure\", \"Never\""));
        }
        "OnFailure" if spec.has("podFailurePolicy") => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(FieldError::invalid_str(&path, "OnFailure", detail));
        }
        policy => one_of(policy, &["OnFailure", "Never"], &path, errors),
    }
}

fn validate_completion_mode(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mode = spec.opt_text("completionMode").unwrap_or("NonIndexed");
    one_of(mode, &["NonIndexed", "Indexed"], &path.child("completionMode"), errors);
    let mut reject = |name: &str, detail: String| {
        errors.push(FieldError::invalid(&path.child(name), spec.field(name), detail));
    };
    if mode == "NonIndexed" {
        for name in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if spec.has(name) {
                reject(name, "requires indexed completion mode".to_owned());
            }
        }
    }
    if mode != "Indexed" {
        return;
    }
    let (completions, parallelism) = (spec.opt_int("completions"), spec.int("parallelism"));
    let max_failed = spec.opt_int("maxFailedIndexes");
    if completions.is_none() {
        let detail = "when completion mode is Indexed";
        errors.push(FieldError::required(&path.child("completions"), detail));
    }
    let mut reject = |name: &str, detail: String| {
        errors.push(FieldError::invalid(&path.child(name), spec.field(name), detail));
    };
    if parallelism > MAX_PARALLELISM {
        let detail =
            format!("must be less than or equal to {MAX_PARALLELISM} when completion mode is Indexed");
        reject("parallelism", detail);
    }
    if let (Some(failed), Some(completions)) = (max_failed, completions)
        && failed > completions
    {
        reject("maxFailedIndexes", "must be less than or equal to completions".to_owned());
    }
    if max_failed.is_some_and(|failed| failed > MAX_FAILED_INDEXES) {
        reject("maxFailedIndexes", format!("must be less than or equal to {MAX_FAILED_INDEXES}"));
    }
    if completions.is_none_or(|completions| completions <= MANY_COMPLETIONS)
        || !spec.has("backoffLimitPerIndex")
    {
        return;
    }
    let above =
        format!("when completions are above {MANY_COMPLETIONS} and used with backoff limit per index");
    if parallelism > MAX_PARALLELISM_FOR_MANY {
        reject("parallelism", format!("must be less than or equal to {MAX_PARALLELISM_FOR_MANY} {above}"));
    }
    if max_failed.is_some_and(|failed| failed > MAX_FAILED_INDEXES_FOR_MANY) {
        reject(
            "maxFailedIndexes",
            format!("must be less than or equal to {MAX_FAILED_INDEXES_FOR_MANY} {above}"),
        );
    }
    if max_failed.is_none() {
        let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.push(FieldError::required(&path.child("maxFailedIndexes"), detail));
    }
}

fn validate_failure_policy(spec: &Value, policy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rules = policy.items("rules");
    let path = path.child("rules");
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(&path, rules.len(), MAX_RULES));
    }
    for (index, rule) in rules.iter().enumerate() {
        validate_failure_rule(spec, rule, &path.index(index), errors);
    }
}

fn validate_failure_rule(spec: &Value, rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let action_path = path.child("action");
    match rule.text("action") {
        "" => {
            let detail = r#"valid values: ["Count" "FailIndex" "FailJob" "Ignore"]"#;
            errors.push(FieldError::required(&action_path, detail));
        }
        "FailIndex" => {
            if !spec.has("backoffLimitPerIndex") {
                let detail = "requires the backoffLimitPerIndex to be set";
                errors.push(FieldError::invalid_str(&action_path, "FailIndex", detail));
            }
        }
        action => one_of(action, &["Count", "FailIndex", "FailJob", "Ignore"], &action_path, errors),
    }
    let (codes, conditions) = (rule.field("onExitCodes"), rule.items("onPodConditions"));
    if !codes.is_null() {
        validate_exit_codes(spec, codes, &path.child("onExitCodes"), errors);
    }
    let conditions_path = path.child("onPodConditions");
    if conditions.len() > MAX_RULES {
        errors.push(FieldError::too_many(&conditions_path, conditions.len(), MAX_RULES));
    }
    for (index, pattern) in conditions.iter().enumerate() {
        let path = conditions_path.index(index);
        qualified_name(pattern.text("type"), &path.child("type"), errors);
        let status_path = path.child("status");
        match pattern.text("status") {
            "" => {
                let detail = r#"valid values: ["False" "True" "Unknown"]"#;
                errors.push(FieldError::required(&status_path, detail));
            }
            status => one_of(status, &["False", "True", "Unknown"], &status_path, errors),
        }
    }
    let problem = match (codes.is_null(), conditions.is_empty()) {
        (false, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (true, true) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return,
    };
    errors.push(invalid_without_value(path, problem));
}

fn validate_exit_codes(spec: &Value, codes: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let operator = codes.text("operator");
    let operator_path = path.child("operator");
    if operator.is_empty() {
        errors.push(FieldError::required(&operator_path, r#"valid values: ["In" "NotIn"]"#));
    } else {
        one_of(operator, &["In", "NotIn"], &operator_path, errors);
    }
    if let Some(name) = codes.opt_text("containerName") {
        let pod = spec.at("template.spec");
        let named = |container: &Value| container.text("name") == name;
        if !["containers", "initContainers"].iter().any(|list| pod.items(list).iter().any(named)) {
            let detail = "must be one of the container or initContainer names in the pod template";
            errors.push(FieldError::invalid_str(&path.child("containerName"), name, detail));
        }
    }
    let values: Vec<i64> = codes.items("values").iter().map(|value| value.as_i64().unwrap_or(0)).collect();
    let path = path.child("values");
    let shown = || Value::from(values.clone());
    if values.is_empty() {
        errors.push(FieldError::invalid(&path, codes.field("values"), "at least one value is required"));
    } else if values.len() > MAX_EXIT_CODES {
        errors.push(FieldError::too_many(&path, values.len(), MAX_EXIT_CODES));
    }
    for (index, value) in values.iter().enumerate() {
        let item = path.index(index);
        if operator == "In" && *value == 0 {
            errors.push(FieldError::invalid(&item, &Value::from(0), "must not be 0 for the In operator"));
        }
        if values[..index].contains(value) {
            errors.push(FieldError::duplicate(&item, &Value::from(*value)));
        }
    }
    if !values.is_sorted() {
        errors.push(FieldError::invalid(&path, &shown(), "must be ordered"));
    }
}

fn validate_success_policy(spec: &Value, policy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rules = policy.items("rules");
    let path = path.child("rules");
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(&path, detail));
    }
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(&path, rules.len(), MAX_RULES));
    }
    let completions = spec.int("completions");
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let (count, list) = (rule.opt_int("succeededCount"), rule.opt_text("succeededIndexes"));
        if count.is_none() && list.is_none() {
            let detail = "at least one of succeededCount or succeededIndexes must be specified";
            errors.push(FieldError::required(&path, detail));
        }
        let mut total = 0;
        if let Some(list) = list {
            let path = path.child("succeededIndexes");
            if list.len() > MAX_SUCCEEDED_INDEXES {
                errors.push(FieldError::too_long(&path, MAX_SUCCEEDED_INDEXES));
            }
            match indexes::count(list, completions) {
                Ok(count) => total = count,
                Err(problem) => {
                    let detail = format!("error parsing succeededIndexes: {problem}");
                    errors.push(FieldError::invalid_str(&path, list, detail));
                }
            }
        }
        let Some(count) = count else { continue };
        let path = path.child("succeededCount");
        non_negative(count, &path, errors);
        let mut reject = |limit: i64, what: &str| {
            if count > limit {
                let detail = format!("must be less than or equal to {limit} ({what})");
                errors.push(FieldError::invalid(&path, &Value::from(count), detail));
            }
        };
        reject(completions, "the number of specified completions");
        if list.is_some() {
            reject(total, "the number of indexes in the specified succeededIndexes field");
        }
    }
}
