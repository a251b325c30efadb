//! ValidatingAdmissionPolicy.

use crate::kind::{drop_status, keep_status};
use crate::validation::checks::one_of;
use crate::validation::expression::Scope as Expressions;
use crate::validation::{admission_policy, admission_rule};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use expressions::Type;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use std::collections::BTreeSet;

pub static KIND: Kind = Kind {
    any_finalizer: true,
    default: admission_policy::default_policy,
    prepare_create: drop_status,
    prepare_update: keep_status,
    validate: |policy| validate(policy, false),
    validate_update: |new, old| validate(new, admission_policy::keeps_match_conditions(new, old)),
    validate_status_update: |new, _| validate_status(new.field("status")),
    warnings: |new, _| admission_rule::warnings(new),
    counts_generation: true,
    unconditional_update: false,
    prepare_status_update: crate::kind::keep_metadata_and_spec,
    metadata_on_update: &[MetadataCheck::New],
    reset_fields: crate::kind::METADATA_RESET_FIELDS,
    table: &crate::tables::admission::VALIDATING_ADMISSION_POLICY,
    ..Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        Scope::Cluster,
    )
};

const AUDIT_ANNOTATIONS_MAX: usize = 20;
const VALUE_EXPRESSION_MAX: usize = 5 * 1024;
const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge"];

fn validate(policy: &Value, ignore_match_conditions: bool) -> ErrorList {
    let (path, spec) = (Path::new("spec"), policy.field("spec"));
    let mut scope = Expressions::new(spec.has("paramKind"), !spec.items("variables").is_empty());
    let mut errors =
        admission_policy::spec_head(spec, ignore_match_conditions, &mut scope, &path, |_, _| Vec::new());
    let (validations, annotations) = (spec.items("validations"), spec.items("auditAnnotations"));
    let (validations_path, annotations_path) = (path.child("validations"), path.child("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required(&validations_path, detail));
        errors.push(FieldError::required(&annotations_path, detail));
        return errors;
    }
    for (index, validation) in validations.iter().enumerate() {
        errors.extend(self::validation(validation, &scope, &validations_path.index(index)));
    }
    if annotations.len() > AUDIT_ANNOTATIONS_MAX {
        let detail = format!("must not have more than {AUDIT_ANNOTATIONS_MAX} auditAnnotations");
        errors.push(FieldError::invalid_shown(&annotations_path, shown_annotations(annotations), detail));
    }
    let mut seen = BTreeSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let path = annotations_path.index(index);
        errors.extend(audit_annotation(meta::name(policy), annotation, &scope, &path));
        let key = annotation.text("key");
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(&path.child("key"), &key.into()));
        }
    }
    errors
}

fn shown_annotations(annotations: &[Value]) -> String {
    let shown: Vec<String> = annotations
        .iter()
        .map(|annotation| {
            let [key, value] = ["key", "valueExpression"].map(|field| Value::from(annotation.text(field)));
            format!(r#"{{"Key":{key},"ValueExpression":{value}}}"#)
        })
        .collect();
    format!("[{}]", shown.join(","))
}

fn validation(validation: &Value, scope: &Expressions, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let text = validation.text("expression");
    if text.trim().is_empty() {
        errors.push(FieldError::required(&path.child("expression"), "expression is not specified"));
    } else {
        errors.extend(scope.check(text, text, &[Type::Bool], &path.child("expression")));
    }
    for (field, one_line) in [("messageExpression", false), ("message", true)] {
        let text = validation.text(field);
        let path = path.child(field);
        if !text.is_empty() && text.trim().is_empty() {
            errors.push(FieldError::invalid_str(&path, text, "must be non-empty if specified"));
        } else if !one_line && !text.is_empty() {
            errors.extend(scope.check_message(text, &path));
        } else if one_line && text.trim().contains(['\n', '\r']) {
            errors.push(FieldError::invalid_str(&path, text, "must not contain line breaks"));
        }
    }
    if let Some(reason) = validation.opt_text("reason") {
        errors.extend(one_of(&path.child("reason"), reason, REASONS));
    }
    errors
}

/// An audit annotation's full key is `policy/key`.
fn audit_annotation(policy: &str, annotation: &Value, scope: &Expressions, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let (key, key_path) = (annotation.text("key"), path.child("key"));
    if policy.is_empty() {
        errors.push(FieldError::invalid_str(&key_path, key, "requires metadata.name be non-empty"));
    } else {
        errors.extend(names::validate_label_name(&format!("{policy}/{key}"), &key_path));
    }
    let text = annotation.text("valueExpression");
    let (value, path) = (text.trim(), path.child("valueExpression"));
    if value.is_empty() {
        errors.push(FieldError::required(&path, "valueExpression is not specified"));
    } else if value.len() > VALUE_EXPRESSION_MAX {
        let detail = format!("must not exceed {VALUE_EXPRESSION_MAX} bytes in length");
        errors.push(FieldError::required(&path, detail));
    } else {
        errors.extend(scope.check(value, text, &[Type::String, Type::Null], &path));
    }
    errors
}

fn validate_status(status: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let warnings_path = path.child("typeChecking");
    let warnings_path = warnings_path.child("expressionWarnings");
    for (index, warning) in status.field("typeChecking").items("expressionWarnings").iter().enumerate() {
        let path = warnings_path.index(index);
        for (field, missing) in [
            ("warning", warning.text("warning").is_empty()),
            ("fieldRef", warning.text("fieldRef").trim().is_empty()),
        ] {
            if missing {
                errors.push(FieldError::required(&path.child(field), ""));
            }
        }
    }
    errors.extend(names::validate_conditions(status.items("conditions"), &path.child("conditions")));
    errors
}
