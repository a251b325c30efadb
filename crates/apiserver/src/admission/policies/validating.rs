//! ValidatingAdmissionPolicy: rejects, warns, or adds audit annotations.

use super::evaluation::{Evaluation, OUT_OF_BUDGET, Stop, Subject, evaluate};
use super::policy::{Binding, Policy, Rules, Validation};
use super::{is_subject, namespace_labels, namespace_of, params};
use crate::admission::metrics::{AdmissionMetrics, error_type};
use crate::admission::{Attributes, Plugin};
use crate::registry::Registry;
use async_trait::async_trait;
use expressions::admission::BUDGET;
use machinery::Value;
use machinery::status::{Cause, Result, Status};
use serde_json::json;
use std::time::{Duration, Instant};

const MAX_MESSAGE: usize = 5 * 1024;
const MAX_ANNOTATION: usize = 10 * 1024;

pub struct ValidatingAdmissionPolicy;

/// Rejection message, and the reason of the Status.
struct PolicyRejection {
    message: String,
    reason: &'static str,
}

/// Result of one policy for one binding and its params.
#[derive(Default)]
struct Findings {
    /// Failures by index of the validation.
    failures: Vec<(usize, PolicyRejection)>,
    annotations: Vec<(String, String)>,
    /// Errors of audit annotations that reject the write.
    broken_annotations: Vec<String>,
    /// An error that the failure policy ignores.
    ignored: Option<String>,
}

impl Findings {
    fn ignored(message: String) -> Self {
        Self { ignored: Some(message), ..Self::default() }
    }

    fn failed(message: String) -> Self {
        let refusal = PolicyRejection { message, reason: "Invalid" };
        Self { failures: vec![(0, refusal)], ..Self::default() }
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_subject(attributes)
    }

    fn is_configured(&self, registry: &Registry) -> bool {
        !registry.admission.policies.validating.is_empty()
    }

    fn admits_connections(&self) -> bool {
        true
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let resources = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
        let policies = registry.admission.policies.validating.current(registry, resources).await?;
        if policies.is_empty() {
            return Ok(());
        }
        let mut namespace = None;
        let mut refused = None;
        for policy in policies.iter() {
            let Some(attributes) = policy.rules.matches.wanted(attributes) else { continue };
            if namespace.is_none() {
                namespace = Some(namespace_of(registry, &attributes).await?);
            }
            let namespace = namespace.as_ref().and_then(Option::as_ref);
            let object = attributes.optional_in_version(object).await?;
            let old = attributes.optional_in_version(old).await?;
            let subject = Subject {
                registry,
                attributes: &attributes,
                object: object.as_deref(),
                old: old.as_deref(),
                namespace,
                params: None,
            };
            let refusal = ask(policy, &subject).await?;
            // All policies are evaluated, so that all can warn; the first rejection is returned.
            refused = refused.or(refusal);
        }
        refused.map_or(Ok(()), Err)
    }
}

/// Evaluates a policy with all its bindings; returns the first rejection.
async fn ask(policy: &Policy, subject: &Subject<'_>) -> Result<Option<Status>> {
    let rules = &policy.rules;
    let labels = namespace_labels(subject.attributes, subject.namespace, subject.object.or(subject.old));
    if !rules.matches.selects(labels.as_ref(), subject.object, subject.old) {
        return Ok(None);
    }
    if let Some(why) = rules.param_kind.as_ref().and_then(|kind| kind.problem()) {
        let message = format!("failed to configure policy: {why}");
        let refusal = PolicyRejection { message, reason: "Invalid" };
        return Ok((!rules.ignores_failure).then(|| status(policy, None, &refusal, subject.attributes)));
    }
    let mut refused = None;
    let mut notes: Vec<(String, Vec<String>)> = Vec::new();
    for binding in &policy.bindings {
        let wanted = binding.matches.as_ref().is_none_or(|matches| {
            matches.wanted(subject.attributes).is_some()
                && matches.selects(labels.as_ref(), subject.object, subject.old)
        });
        if !wanted {
            continue;
        }
        let scope = subject.attributes.context.namespace;
        let params = params::of_binding(rules.param_kind.as_ref(), binding, scope).await?;
        let params = match params {
            Ok(params) => params,
            Err(_) if rules.ignores_failure => continue,
            Err(why) => {
                let refusal = PolicyRejection {
                    message: format!("failed to configure binding: {why}"),
                    reason: "Invalid",
                };
                refused =
                    refused.or_else(|| Some(status(policy, Some(binding), &refusal, subject.attributes)));
                continue;
            }
        };
        for params in &params {
            let subject = Subject { params: params.as_ref(), ..*subject };
            let begin = Instant::now();
            let found =
                evaluate(&subject, &rules.variables, |evaluation| findings(rules, evaluation)).await?;
            let found = found.unwrap_or_else(|_| match rules.ignores_failure {
                true => Findings::ignored(OUT_OF_BUDGET.to_owned()),
                false => Findings::failed(OUT_OF_BUDGET.to_owned()),
            });
            if let Some(metrics) = &subject.registry.admission.metrics {
                record(metrics, policy, binding, &found, begin.elapsed());
            }
            let refusal = act(policy, binding, found, &subject, &mut notes);
            refused = refused.or(refusal);
        }
    }
    for (key, values) in notes {
        let key = format!("{}/{key}", policy.name);
        subject.attributes.context.record.annotate(key, values.join(", "));
    }
    Ok(refused)
}

/// Records each failure by enforcement action, and ignored errors. As in Kubernetes, other results are not counted.
fn record(metrics: &AdmissionMetrics, policy: &Policy, binding: &Binding, found: &Findings, took: Duration) {
    let names = [&*policy.name, &*binding.name];
    for (_, refusal) in &found.failures {
        for action in &binding.actions {
            let action = match action.as_str() {
                "Deny" => "deny",
                "Audit" => "audit",
                "Warn" => "warn",
                _ => continue,
            };
            metrics.validated(names, error_type(&refusal.message), action, took);
        }
    }
    for message in &found.broken_annotations {
        metrics.validated(names, error_type(message), "deny", took);
    }
    if let Some(message) = &found.ignored {
        metrics.validated(names, error_type(message), "allow", took);
    }
}

/// Applies the binding's `validationActions` to failures.
fn act(
    policy: &Policy,
    binding: &Binding,
    found: Findings,
    subject: &Subject<'_>,
    notes: &mut Vec<(String, Vec<String>)>,
) -> Option<Status> {
    let record = subject.attributes.context.record;
    let mut refused = None;
    for (scope, refusal) in &found.failures {
        for action in &binding.actions {
            match action.as_str() {
                "Deny" => {
                    refused =
                        refused.or_else(|| Some(status(policy, Some(binding), refusal, subject.attributes)));
                }
                "Audit" => {
                    let failure = json!([{
                        "message": refusal.message, "policy": policy.name, "binding": binding.name,
                        "expressionIndex": scope, "validationActions": binding.actions,
                    }]);
                    let key = "validation.policy.admission.k8s.io/validation_failure";
                    record.annotate(key, failure.to_string());
                }
                "Warn" => record.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                    policy.name, binding.name, refusal.message
                )),
                _ => {}
            }
        }
    }
    for (key, value) in found.annotations {
        match notes.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => notes.push((key, vec![value])),
        }
    }
    for message in found.broken_annotations {
        let refusal = PolicyRejection { message, reason: "Invalid" };
        refused = refused.or_else(|| Some(status(policy, Some(binding), &refusal, subject.attributes)));
    }
    refused
}

/// Evaluates a policy's expressions.
fn findings(rules: &Rules, evaluation: &Evaluation<'_, '_>) -> Result<Findings, Stop> {
    let failed = |message: String| match rules.ignores_failure {
        true => Findings::ignored(message),
        false => Findings::failed(message),
    };
    match evaluation.conditions_hold(&rules.conditions)? {
        Ok(true) => {}
        Ok(false) => return Ok(Findings::default()),
        Err(why) => return Ok(failed(why)),
    }
    let mut budget = BUDGET;
    let mut outcomes = Vec::with_capacity(rules.validations.len());
    for validation in &rules.validations {
        outcomes.push(evaluation.value(&validation.program, &validation.text, &mut budget)?);
    }
    let mut found = Findings::default();
    for (scope, (validation, outcome)) in rules.validations.iter().zip(outcomes).enumerate() {
        let refusal = match outcome {
            Ok(value) if value.as_bool() == Some(true) => continue,
            Ok(_) => match message(validation, evaluation, &mut budget) {
                Ok(message) => PolicyRejection { message, reason: reason(&validation.reason) },
                Err(Stop::OutOfBudget) if rules.ignores_failure => continue,
                Err(Stop::OutOfBudget) => PolicyRejection {
                    message: format!("failed messageExpression: {OUT_OF_BUDGET}"),
                    reason: "Invalid",
                },
                Err(pending) => return Err(pending),
            },
            Err(message) if rules.ignores_failure => {
                found.ignored = Some(message);
                continue;
            }
            Err(message) => PolicyRejection { message, reason: "Invalid" },
        };
        found.failures.push((scope, refusal));
    }
    let mut budget = BUDGET;
    for annotation in &rules.audit_annotations {
        match evaluation.value(&annotation.program, &annotation.text, &mut budget)? {
            Ok(value) => {
                let text = value.as_str().unwrap_or("").trim();
                if !text.is_empty() {
                    found.annotations.push((annotation.key.clone(), cut(text, MAX_ANNOTATION).to_owned()));
                }
            }
            Err(_) if rules.ignores_failure => {}
            Err(why) => found.broken_annotations.push(why),
        }
    }
    Ok(found)
}

/// Message of a failed validation.
fn message(
    validation: &Validation,
    evaluation: &Evaluation<'_, '_>,
    budget: &mut u64,
) -> Result<String, Stop> {
    if let Some(program) = &validation.message_program
        && let Ok(value) = evaluation.value(program, "", budget)?
    {
        let made = value.as_str().unwrap_or("").trim();
        if !made.is_empty() && made.len() <= MAX_MESSAGE && !made.contains('\n') {
            return Ok(made.to_owned());
        }
    }
    if !validation.message.is_empty() {
        return Ok(validation.message.clone());
    }
    Ok(format!("failed expression: {}", validation.text.trim()))
}

/// Truncates a text to at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or(text)
}

fn reason(text: &str) -> &'static str {
    match text {
        "Forbidden" => "Forbidden",
        "Unauthorized" => "Unauthorized",
        "RequestEntityTooLarge" => "RequestEntityTooLarge",
        _ => "Invalid",
    }
}

fn status(
    policy: &Policy,
    binding: Option<&Binding>,
    refusal: &PolicyRejection,
    attributes: &Attributes<'_>,
) -> Status {
    let by = match binding {
        Some(binding) => format!("'{}' with binding '{}'", policy.name, binding.name),
        None => format!("'{}'", policy.name),
    };
    let message = format!("ValidatingAdmissionPolicy {by} denied request: {}", refusal.message);
    let mut status = attributes.forbidden(&message);
    status.reason = refusal.reason;
    status.code = match refusal.reason {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    if let Some(details) = &mut status.details {
        details.causes.push(Cause { message, ..Cause::default() });
    }
    status
}
