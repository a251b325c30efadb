//! ValidatingAdmissionPolicy: refuses, warns, or notes for those who audit.

use super::evaluation::{Evaluation, OUT_OF_BUDGET, Stop, Subject, evaluate};
use super::policy::{Binding, Policy, Rules, Validation};
use super::{concerned, namespace_labels, namespace_of, params};
use crate::admission::{Attributes, Plugin};
use crate::registry::Registry;
use expressions::admission::BUDGET;
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::status::{Cause, Result, Status};
use serde_json::json;

const MAX_MESSAGE: usize = 5 * 1024;
const MAX_ANNOTATION: usize = 10 * 1024;

pub struct ValidatingAdmissionPolicy;

/// Why a write is refused, with the reason that the answer has.
struct Refusal {
    message: String,
    reason: &'static str,
}

/// What one policy says of a write for one binding and its params.
#[derive(Default)]
struct Findings {
    /// By the place of the validation.
    failures: Vec<(usize, Refusal)>,
    annotations: Vec<(String, String)>,
    /// Annotations that could not be made, where that refuses the write.
    broken_annotations: Vec<String>,
}

impl Findings {
    fn failed(message: String) -> Self {
        let refusal = Refusal { message, reason: "Invalid" };
        Self { failures: vec![(0, refusal)], ..Self::default() }
    }
}

impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        concerned(attributes)
    }

    fn admits_connections(&self) -> bool {
        true
    }

    fn validate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        if registry.admission.policies.validating.is_empty() {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(async move {
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
                // All are asked, so that all warn; the first refusal is the one that is told.
                refused = refused.or(refusal);
            }
            refused.map_or(Ok(()), Err)
        })
    }
}

/// What a policy says with all its bindings; the first refusal, if there is one.
async fn ask(policy: &Policy, subject: &Subject<'_>) -> Result<Option<Status>> {
    let rules = &policy.rules;
    let labels = namespace_labels(subject.attributes, subject.namespace, subject.object.or(subject.old));
    if !rules.matches.selects(labels.as_ref(), subject.object, subject.old) {
        return Ok(None);
    }
    if let Some(why) = rules.param_kind.as_ref().and_then(|kind| kind.problem()) {
        let message = format!("failed to configure policy: {why}");
        let refusal = Refusal { message, reason: "Invalid" };
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
        let place = subject.attributes.context.namespace;
        let params = params::of_binding(rules.param_kind.as_ref(), binding, place).await?;
        let params = match params {
            Ok(params) => params,
            Err(_) if rules.ignores_failure => continue,
            Err(why) => {
                let refusal =
                    Refusal { message: format!("failed to configure binding: {why}"), reason: "Invalid" };
                refused =
                    refused.or_else(|| Some(status(policy, Some(binding), &refusal, subject.attributes)));
                continue;
            }
        };
        for params in &params {
            let subject = Subject { params: params.as_ref(), ..*subject };
            let found =
                evaluate(&subject, &rules.variables, |evaluation| findings(rules, evaluation)).await?;
            let found = found.unwrap_or_else(|_| match rules.ignores_failure {
                true => Findings::default(),
                false => Findings::failed(OUT_OF_BUDGET.to_owned()),
            });
            let refusal = act(policy, binding, found, &subject, &mut notes);
            refused = refused.or(refusal);
        }
    }
    for (key, values) in notes {
        let key = format!("{}/{key}", policy.name);
        subject.attributes.context.warnings.annotate(key, values.join(", "));
    }
    Ok(refused)
}

/// Does what the binding wants done about failures.
fn act(
    policy: &Policy,
    binding: &Binding,
    found: Findings,
    subject: &Subject<'_>,
    notes: &mut Vec<(String, Vec<String>)>,
) -> Option<Status> {
    let warnings = subject.attributes.context.warnings;
    let mut refused = None;
    for (place, refusal) in &found.failures {
        for action in &binding.actions {
            match action.as_str() {
                "Deny" => {
                    refused =
                        refused.or_else(|| Some(status(policy, Some(binding), refusal, subject.attributes)));
                }
                "Audit" => {
                    let failure = json!([{
                        "message": refusal.message, "policy": policy.name, "binding": binding.name,
                        "expressionIndex": place, "validationActions": binding.actions,
                    }]);
                    let key = "validation.policy.admission.k8s.io/validation_failure";
                    warnings.annotate(key, failure.to_string());
                }
                "Warn" => warnings.add(format!(
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
        let refusal = Refusal { message, reason: "Invalid" };
        refused = refused.or_else(|| Some(status(policy, Some(binding), &refusal, subject.attributes)));
    }
    refused
}

/// What a policy's expressions find.
fn findings(rules: &Rules, evaluation: &Evaluation<'_, '_>) -> Result<Findings, Stop> {
    let failed = |message: String| match rules.ignores_failure {
        true => Findings::default(),
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
    for (place, (validation, outcome)) in rules.validations.iter().zip(outcomes).enumerate() {
        let refusal = match outcome {
            Ok(value) if value.as_bool() == Some(true) => continue,
            Ok(_) => match message(validation, evaluation, &mut budget) {
                Ok(message) => Refusal { message, reason: reason(&validation.reason) },
                Err(Stop::OutOfBudget) if rules.ignores_failure => continue,
                Err(Stop::OutOfBudget) => Refusal {
                    message: format!("failed messageExpression: {OUT_OF_BUDGET}"),
                    reason: "Invalid",
                },
                Err(asks) => return Err(asks),
            },
            Err(_) if rules.ignores_failure => continue,
            Err(message) => Refusal { message, reason: "Invalid" },
        };
        found.failures.push((place, refusal));
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

/// What is said of a validation that does not hold.
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

/// At most so many bytes of a text.
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
    refusal: &Refusal,
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
