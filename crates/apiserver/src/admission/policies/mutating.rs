//! MutatingAdmissionPolicy: mutates objects by apply configurations or JSON patches.

use super::evaluation::{Evaluation, OUT_OF_BUDGET, Stop, Subject, evaluate};
use super::policy::{Binding, Mutation, Policy};
use super::{complete, is_subject, namespace_labels, namespace_of, params};
use crate::admission::metrics::error_type;
use crate::admission::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use async_trait::async_trait;
use expressions::admission::BUDGET;
use expressions::{BuiltObject, List, Value as Evaluated};
use machinery::status::{Cause, Result};
use machinery::{Map, Value};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

const RESOURCES: [&str; 2] = ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];

pub struct MutatingAdmissionPolicy;

/// Evaluated policies as (policy, binding, params), for reinvocation after later mutations.
type Invocations = Vec<(String, String, String)>;

#[async_trait]
impl Plugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && is_subject(attributes)
    }

    fn is_configured(&self, registry: &Registry) -> bool {
        !registry.admission.policies.mutating.is_empty()
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let policies = registry.admission.policies.mutating.current(registry, RESOURCES).await?;
        let Some(object) = object.filter(|_| !policies.is_empty()) else { return Ok(()) };
        let again = run(&policies, registry, attributes, object, old, None).await?;
        if !again.is_empty() {
            run(&policies, registry, attributes, object, old, Some(&again)).await?;
        }
        Ok(())
    }
}

/// Reinvokes policies after later mutations; returns true if the object changed.
pub async fn mutate_again(
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<bool> {
    if !registry.admission.names().any(|name| name == "MutatingAdmissionPolicy") {
        return Ok(false);
    }
    let policies = registry.admission.policies.mutating.current(registry, RESOURCES).await?;
    let all: Vec<&Policy> = policies.iter().filter(|policy| policy.rules.is_reinvoked).collect();
    if all.is_empty() {
        return Ok(false);
    }
    let before = object.clone();
    let names: Invocations =
        all.iter().map(|policy| (policy.name.clone(), String::new(), String::new())).collect();
    run(&policies, registry, attributes, object, old, Some(&names)).await?;
    Ok(before != *object)
}

/// One round over the policies.
struct Round<'r> {
    /// Invocations to run, empty parts matching all; `None` runs every policy.
    only: Option<&'r Invocations>,
    /// Reinvocable policies that ran since the last change of the object.
    ran: Invocations,
    /// Policies to reinvoke.
    again: Invocations,
    /// Messages and reasons of failures.
    errors: Vec<(String, &'static str)>,
}

/// Runs one round over all policies, or over those of `only`; returns the policies to reinvoke.
async fn run(
    policies: &[Policy],
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: &mut Value,
    old: Option<&Value>,
    only: Option<&Invocations>,
) -> Result<Invocations> {
    let mut round = Round { only, ran: Vec::new(), again: Vec::new(), errors: Vec::new() };
    let mut namespace = None;
    for policy in policies {
        let Some(attributes) = &policy.rules.matches.wanted(attributes) else { continue };
        if namespace.is_none() {
            namespace = Some(namespace_of(registry, attributes).await?);
        }
        let namespace = namespace.as_ref().and_then(Option::as_ref);
        let old = attributes.optional_in_version(old).await?;
        let old = old.as_deref();
        let subject = Subject { registry, attributes, object: None, old, namespace, params: None };
        round.policy(policy, &subject, object).await?;
    }
    round.finish(attributes)
}

impl Round<'_> {
    /// Runs a policy with all its bindings, if it selects the object.
    async fn policy(&mut self, policy: &Policy, subject: &Subject<'_>, object: &mut Value) -> Result<()> {
        let rules = &policy.rules;
        let labels = namespace_labels(subject.attributes, subject.namespace, Some(object));
        if !rules.matches.selects(labels.as_ref(), Some(object), subject.old) {
            return Ok(());
        }
        if let Some(why) = rules.param_kind.as_ref().and_then(|kind| kind.problem()) {
            let why = format!("policy {:?} denied request: failed to configure policy: {why}", policy.name);
            self.fail(policy, why, "Forbidden");
            return Ok(());
        }
        for binding in &policy.bindings {
            let wanted = binding.matches.as_ref().is_none_or(|matches| {
                matches.wanted(subject.attributes).is_some()
                    && matches.selects(labels.as_ref(), Some(object), subject.old)
            });
            if wanted {
                self.binding(policy, binding, subject, object).await?;
            }
        }
        Ok(())
    }

    /// Runs a policy once per parameter of a binding.
    async fn binding(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        subject: &Subject<'_>,
        object: &mut Value,
    ) -> Result<()> {
        let attributes = subject.attributes;
        let param_kind = policy.rules.param_kind.as_ref();
        let params = match params::of_binding(param_kind, binding, attributes.context.namespace).await? {
            Ok(params) => params,
            Err(why) => {
                let why = format!("failed to configure binding: {why}");
                self.fail(policy, denied(policy, binding, &why), "Forbidden");
                return Ok(());
            }
        };
        for params in &params {
            let key = key(policy, binding, params.as_ref());
            if self.only.is_some_and(|only| !only.iter().any(|row| is_of(row, &key))) {
                continue;
            }
            let subject = Subject { params: params.as_ref(), ..*subject };
            let mut seen = attributes.in_version(object).await?.into_owned();
            let begin = Instant::now();
            let outcome = mutate(policy, &subject, &mut seen).await?;
            if let Some(metrics) = &subject.registry.admission.metrics {
                let error = outcome.as_ref().err().map_or("no_error", |why| error_type(why));
                // As in Kubernetes, a policy whose conditions do not hold is not counted.
                if !matches!(outcome, Ok(None)) {
                    metrics.mutated([&policy.name, &binding.name], error, begin.elapsed());
                }
            }
            attributes.convert_back(seen, object).await?;
            match outcome {
                Ok(Some(changed)) => {
                    if changed {
                        self.again.append(&mut self.ran);
                    }
                    if policy.rules.is_reinvoked {
                        self.ran.push(key);
                    }
                }
                Ok(None) => {}
                Err(why) => self.fail(policy, denied(policy, binding, &why), "Invalid"),
            }
        }
        Ok(())
    }

    fn fail(&mut self, policy: &Policy, why: String, reason: &'static str) {
        if !policy.rules.ignores_failure {
            self.errors.push((why, reason));
        }
    }

    /// Policies to reinvoke, or a rejection with all failures.
    fn finish(self, attributes: &Attributes<'_>) -> Result<Invocations> {
        let Some((first, reason)) = self.errors.first() else { return Ok(self.again) };
        let mut status = attributes.forbidden("");
        status.message.clone_from(first);
        status.reason = *reason;
        if let Some(details) = &mut status.details {
            let cause = |(message, _): &(String, _)| Cause { message: message.clone(), ..Cause::default() };
            details.causes = self.errors.iter().map(cause).collect();
        }
        Err(status)
    }
}

fn key(policy: &Policy, binding: &Binding, params: Option<&Value>) -> (String, String, String) {
    let of =
        |params: &Value| format!("{}/{}", machinery::meta::namespace(params), machinery::meta::name(params));
    (policy.name.clone(), binding.name.clone(), params.map(of).unwrap_or_default())
}

fn is_of(row: &(String, String, String), key: &(String, String, String)) -> bool {
    row.0 == key.0 && (row.1.is_empty() || (row.1 == key.1 && row.2 == key.2))
}

fn denied(policy: &Policy, binding: &Binding, why: &str) -> String {
    format!("policy '{}' with binding '{}' denied request: {why}", policy.name, binding.name)
}

/// Returns whether the object changed; `None` if the match conditions do not hold. The inner error rejects the write.
async fn mutate(
    policy: &Policy,
    subject: &Subject<'_>,
    object: &mut Value,
) -> Result<Result<Option<bool>, String>> {
    let rules = &policy.rules;
    let before = object.clone();
    {
        let subject = Subject { object: Some(&before), ..*subject };
        let holds =
            evaluate(&subject, &rules.variables, |evaluation| evaluation.conditions_hold(&rules.conditions));
        match holds.await? {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Ok(Ok(None)),
            Ok(Err(why)) => return Ok(Err(why)),
            Err(_) => return Ok(Err(OUT_OF_BUDGET.to_owned())),
        }
    }
    for mutation in &rules.mutations {
        // Each mutation sees the result of the previous ones.
        let current = object.clone();
        let subject = Subject { object: Some(&current), ..*subject };
        let patch = evaluate(&subject, &rules.variables, |evaluation| patch(mutation, evaluation)).await?;
        let patch = match patch {
            Ok(Ok(patch)) => patch,
            Ok(Err(why)) => return Ok(Err(why)),
            Err(_) => return Ok(Err(OUT_OF_BUDGET.to_owned())),
        };
        if let Err(why) = apply(&patch, subject.attributes, object) {
            return Ok(Err(why));
        }
        complete(subject.attributes, object)?;
    }
    Ok(Ok(Some(before != *object)))
}

/// Evaluated mutation.
enum Patch {
    Merge(Value),
    Json(Value),
}

fn patch(mutation: &Mutation, evaluation: &Evaluation<'_, '_>) -> Result<Result<Patch, String>, Stop> {
    let program = match &mutation.program {
        Ok(_) => &mutation.program,
        Err(why) => return Ok(Err(why.clone())),
    };
    let mut budget = BUDGET;
    let value = match evaluation.value(program, &mutation.text, &mut budget)? {
        Ok(value) => value,
        Err(why) => return Ok(Err(why)),
    };
    Ok(match (mutation.is_json_patch, value) {
        (true, Evaluated::List(list)) => json_patch(&list).map(Patch::Json),
        (false, Evaluated::Object(made)) => merge_patch(&made).map(Patch::Merge),
        (_, other) => Err(format!("unsupported return type: {}", other.type_name())),
    })
}

fn merge_patch(made: &Arc<BuiltObject<'_>>) -> Result<Value, String> {
    check_names(&Evaluated::Object(made.clone()), "Object", 0)
        .map_err(|why| format!("type mismatch: {why}"))?;
    Evaluated::Object(made.clone()).to_json()
}

fn json_patch(list: &List<'_>) -> Result<Value, String> {
    let mut operations = Vec::with_capacity(list.len());
    for operation in list.iter() {
        let Evaluated::Object(operation) = operation else {
            return Err(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned()
            );
        };
        let text = |field: &str| operation.fields.get(field).and_then(Evaluated::as_str).unwrap_or("");
        let mut made = json!({"op": text("op"), "path": text("path")});
        if !text("from").is_empty() {
            made["from"] = text("from").into();
        }
        if let Some(value) = operation.fields.get("value") {
            if let Evaluated::Object(object) = value {
                check_names(value, &object.type_name, 0).map_err(|why| format!("type mismatch: {why}"))?;
            }
            made["value"] = value.to_json().map_err(|why| {
                format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}")
            })?;
        }
        operations.push(made);
    }
    Ok(Value::Array(operations))
}

/// Checks types: `Object.spec{}` is allowed only in the field `spec` of an `Object{}`.
fn check_names(value: &Evaluated<'_>, path: &str, depth: usize) -> Result<(), String> {
    if depth > 100 {
        return Err("the object is nested too deeply".to_owned());
    }
    match value {
        Evaluated::Object(made) => {
            if *made.type_name != *path {
                return Err(format!(
                    "unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
                    made.type_name
                ));
            }
            made.fields
                .iter()
                .try_for_each(|(name, field)| check_names(field, &format!("{path}.{name}"), depth + 1))
        }
        Evaluated::List(list) => list.iter().try_for_each(|item| check_names(&item, path, depth + 1)),
        Evaluated::Map(map) => map.iter().try_for_each(|(_, item)| check_names(&item, path, depth + 1)),
        _ => Ok(()),
    }
}

fn apply(patch: &Patch, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), String> {
    match patch {
        Patch::Json(operations) => {
            let mut patched = object.clone();
            match machinery::patch::json_patch::apply(&mut patched, operations) {
                Ok(()) => *object = patched,
                // A failing `test` operation skips the patch.
                Err(error) if error.to_string().ends_with("test failed") => {}
                Err(error) => return Err(format!("JSON Patch: {error}")),
            }
            Ok(())
        }
        Patch::Merge(partial) => {
            if !attributes.is_whole() {
                return Err("error applying patch: the subresource has no schema to merge by".to_owned());
            }
            let mut partial = partial.clone();
            if let Some(fields) = partial.as_object_mut() {
                set_type(fields, object);
            }
            let merged = machinery::apply::overlay(attributes.served.schema(), object, &partial);
            *object = merged.map_err(|error| format!("error applying patch: {error}"))?;
            Ok(())
        }
    }
}

/// A partial object gets the type of the whole one.
fn set_type(partial: &mut Map<String, Value>, whole: &Value) {
    for field in ["apiVersion", "kind"] {
        if let Some(value) = whole.get(field) {
            partial.insert(field.to_owned(), value.clone());
        }
    }
}
