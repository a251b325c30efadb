//! MutatingAdmissionPolicy: changes objects by merging what an expression makes, or by a JSON patch.

use super::evaluation::{Evaluation, OUT_OF_BUDGET, Stop, Subject, evaluate};
use super::policy::{Binding, Mutation, Policy};
use super::{complete, concerned, namespace_labels, namespace_of, params};
use crate::admission::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use expressions::admission::BUDGET;
use expressions::{List, Made, Value as Evaluated};
use futures_util::future::BoxFuture;
use machinery::status::{Cause, Result};
use machinery::{Map, Value};
use serde_json::json;
use std::sync::Arc;

const RESOURCES: [&str; 2] = ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];

pub struct MutatingAdmissionPolicy;

/// Who has run: policy, binding, params. Those that want to run again if others change the object after them.
type Ran = Vec<(String, String, String)>;

impl Plugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && concerned(attributes)
    }

    fn mutate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        if registry.admission.policies.mutating.is_empty() {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(async move {
            let policies = registry.admission.policies.mutating.current(registry, RESOURCES).await?;
            let Some(object) = object.filter(|_| !policies.is_empty()) else { return Ok(()) };
            let again = run(&policies, registry, attributes, object, old, None).await?.again;
            if !again.is_empty() {
                run(&policies, registry, attributes, object, old, Some(&again)).await?;
            }
            Ok(())
        })
    }
}

/// Runs the policies that want to see what others have changed after them; whether that changed anything.
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
    let names: Ran = all.iter().map(|policy| (policy.name.clone(), String::new(), String::new())).collect();
    run(&policies, registry, attributes, object, old, Some(&names)).await?;
    Ok(before != *object)
}

/// What a round leaves behind.
struct Round {
    /// Who is to run again.
    again: Ran,
}

/// One round over all policies, or over those of `only` (empty parts of a row stand for all).
async fn run<'a>(
    policies: &[Policy],
    registry: &'a Registry,
    attributes: &Attributes<'a>,
    object: &mut Value,
    old: Option<&Value>,
    only: Option<&Ran>,
) -> Result<Round> {
    let mut round = Round { again: Vec::new() };
    let mut ran: Ran = Vec::new();
    let mut errors: Vec<(String, &'static str)> = Vec::new();
    let mut namespace = None;
    for policy in policies {
        let Some(attributes) = &policy.rules.matches.wanted(attributes) else { continue };
        if namespace.is_none() {
            namespace = Some(namespace_of(registry, attributes).await?);
        }
        let namespace = namespace.as_ref().and_then(Option::as_ref);
        let labels = namespace_labels(attributes, namespace, Some(object));
        let old = attributes.optional_in_version(old).await?;
        let old = old.as_deref();
        let rules = &policy.rules;
        if !rules.matches.selects(labels.as_ref(), Some(object), old) {
            continue;
        }
        let mut fail = |why: String, reason: &'static str| {
            if !rules.ignores_failure {
                errors.push((why, reason));
            }
        };
        if let Some(why) = rules.param_kind.as_ref().and_then(|kind| kind.problem()) {
            let why = format!("policy {:?} denied request: failed to configure policy: {why}", policy.name);
            fail(why, "Forbidden");
            continue;
        }
        for binding in &policy.bindings {
            let wanted = binding.matches.as_ref().is_none_or(|matches| {
                matches.wanted(attributes).is_some() && matches.selects(labels.as_ref(), Some(object), old)
            });
            if !wanted {
                continue;
            }
            let place = attributes.context.namespace;
            let params = params::of_binding(rules.param_kind.as_ref(), binding, place).await?;
            let params = match params {
                Ok(params) => params,
                Err(why) => {
                    let why = format!("failed to configure binding: {why}");
                    fail(denied(policy, binding, &why), "Forbidden");
                    continue;
                }
            };
            for params in &params {
                let key = key(policy, binding, params.as_ref());
                if only.is_some_and(|only| !only.iter().any(|row| is_of(row, &key))) {
                    continue;
                }
                let subject =
                    Subject { registry, attributes, object: None, old, namespace, params: params.as_ref() };
                let mut seen = attributes.in_version(object).await?.into_owned();
                let outcome = mutate(policy, &subject, &mut seen).await?;
                attributes.give_back(seen, object).await?;
                match outcome {
                    Ok(Some(changed)) => {
                        if changed {
                            round.again.append(&mut ran);
                        }
                        if rules.is_reinvoked {
                            ran.push(key);
                        }
                    }
                    Ok(None) => {}
                    Err(why) => fail(denied(policy, binding, &why), "Invalid"),
                }
            }
        }
    }
    match errors.as_slice() {
        [] => Ok(round),
        [(first, reason), ..] => {
            let mut status = attributes.forbidden("");
            status.message.clone_from(first);
            status.reason = *reason;
            if let Some(details) = &mut status.details {
                let causes = errors.iter();
                details.causes = causes
                    .map(|(message, _)| Cause { message: message.clone(), ..Cause::default() })
                    .collect();
            }
            Err(status)
        }
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

/// Whether the object has changed; `None`: the policy's conditions do not hold. The inner error refuses the write.
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
        // Each mutation sees what those before it have made.
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

/// What an expression has made of a mutation.
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
        (false, Evaluated::Made(made)) => merge_patch(&made).map(Patch::Merge),
        (_, other) => Err(format!("unsupported return type: {}", other.type_name())),
    })
}

fn merge_patch(made: &Arc<Made<'_>>) -> Result<Value, String> {
    check_names(&Evaluated::Made(made.clone()), "Object", 0)
        .map_err(|why| format!("type mismatch: {why}"))?;
    Evaluated::Made(made.clone()).to_json()
}

fn json_patch(list: &List<'_>) -> Result<Value, String> {
    let mut operations = Vec::with_capacity(list.len());
    for operation in list.iter() {
        let Evaluated::Made(operation) = operation else {
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
            if let Evaluated::Made(object) = value {
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

/// `Object.spec{}` belongs into the field `spec` of an `Object{}`, nowhere else.
fn check_names(value: &Evaluated<'_>, path: &str, depth: usize) -> Result<(), String> {
    if depth > 100 {
        return Err("the object is nested too deeply".to_owned());
    }
    match value {
        Evaluated::Made(made) => {
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
                // A test that fails calls the patch off.
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

/// A partial object is of the type of the whole one.
fn set_type(partial: &mut Map<String, Value>, whole: &Value) {
    for field in ["apiVersion", "kind"] {
        if let Some(value) = whole.get(field) {
            partial.insert(field.to_owned(), value.clone());
        }
    }
}
