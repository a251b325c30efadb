//! Evaluates the expressions of one write: variables, cost budget, authorizer decisions.

use super::policy::Compiled;
use crate::admission::Attributes;
use crate::admission::webhooks::request;
use crate::authorize::{self, Decision};
use crate::chain::offload;
use crate::registry::Registry;
use crate::user::UserInfo;
use api::value::Fields;
use expressions::admission::{self, CONDITIONS_BUDGET, Options};
use expressions::{
    Check, CheckTarget, Composition, Decisions, Environment, Fault, Inputs, PER_CALL_LIMIT, Program,
    ResourceTarget, Type, Value as Evaluated,
};
use machinery::Value;
use machinery::status::Result;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Limit on authorizer checks per write.
const MAX_AUTHORIZER_CHECKS: usize = 100;
/// Cost up to which an expression is evaluated inline: some milliseconds of computing.
const INLINE_LIMIT: u64 = 20_000;

static HOOK_CONDITIONS: LazyLock<Environment> =
    LazyLock::new(|| admission::environment(Options { has_authorizer: true, ..Options::default() }));

#[cfg(test)]
thread_local! {
    /// Evaluations of programs on this thread.
    pub static EVALUATIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A match condition of a webhook or a policy.
pub struct Condition {
    text: String,
    program: Compiled,
}

impl Condition {
    /// `matchConditions` of a webhook.
    pub fn of_hook(hook: &Value) -> Vec<Self> {
        // Most webhooks have none, so the environment is created on demand.
        if hook.items("matchConditions").is_empty() { Vec::new() } else { Self::all(hook, &HOOK_CONDITIONS) }
    }

    pub fn all(owner: &Value, environment: &Environment) -> Vec<Self> {
        let conditions = owner.items("matchConditions").iter().map(|condition| {
            let text = condition.text("expression");
            let program = environment.compile_to(text.trim(), &[Type::Bool]);
            Self { text: text.to_owned(), program: program.map_err(|error| error.to_string()) }
        });
        conditions.collect()
    }
}

/// The write that expressions refer to.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub registry: &'a Registry,
    pub attributes: &'a Attributes<'a>,
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    pub namespace: Option<&'a Value>,
    pub params: Option<&'a Value>,
}

/// Reason why an evaluation stopped.
pub enum Stop {
    /// An authorizer decision is needed first.
    NeedsDecision(Box<Check>),
    /// Too expensive for a thread shared with other requests.
    Heavy,
    OutOfBudget,
}

pub const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Evaluates a policy's expressions in sequence within the budget. Results are cached across stops: a second pass
/// resumes with the expression at which the first stopped.
pub struct Evaluation<'e, 'a> {
    variables: [Evaluated<'a>; 7],
    composition: Composition<'e, 'a>,
    answers: RefCell<Decisions>,
    /// Values and costs of evaluated programs, by address.
    known: RefCell<HashMap<usize, (expressions::EvaluationResult<'a>, u64)>>,
    /// Cost limit of each expression in this pass.
    limit: u64,
}

impl<'e, 'a> Evaluation<'e, 'a> {
    fn new(
        subject: &Subject<'a>,
        request_variables: &'a RequestVariables,
        programs: &'e [(String, Compiled)],
    ) -> Self {
        let value = |of: Option<&'a Value>| of.map_or(Evaluated::Null, Evaluated::from);
        Self {
            variables: [
                value(subject.object),
                value(subject.old),
                value(request_variables.namespace.as_ref()),
                Evaluated::from(&request_variables.request),
                value(subject.params),
                Check::authorizer(),
                Check::resource(request_variables.resource.clone()),
            ],
            composition: Composition::new(programs),
            answers: RefCell::default(),
            known: RefCell::default(),
            limit: INLINE_LIMIT,
        }
    }

    /// Value of an expression, or its error.
    pub fn value(
        &self,
        program: &Compiled,
        text: &str,
        budget: &mut u64,
    ) -> Result<Result<Evaluated<'a>, String>, Stop> {
        let program: &Program = match program {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let (outcome, cost) = self.outcome(program)?;
        *budget = budget.checked_sub(cost).ok_or(Stop::OutOfBudget)?;
        Ok(outcome.map_err(|fault| format!("expression '{text}' resulted in error: {fault}")))
    }

    /// Outcome and cost of a program, evaluated once.
    fn outcome(&self, program: &Program) -> Result<(expressions::EvaluationResult<'a>, u64), Stop> {
        let address = std::ptr::from_ref(program) as usize;
        if let Some(known) = self.known.borrow().get(&address) {
            return Ok(known.clone());
        }
        let answers = self.answers.borrow();
        let inputs = Inputs {
            variables: &self.variables,
            composed: Some(&self.composition),
            answers: Some(&answers),
            limit: self.limit,
        };
        let (outcome, cost) = program.evaluate(&inputs);
        #[cfg(test)]
        EVALUATIONS.set(EVALUATIONS.get() + 1);
        match &outcome {
            Err(Fault::NeedsDecision(check)) => return Err(Stop::NeedsDecision(Box::new((**check).clone()))),
            Err(Fault::Cost) if self.limit < PER_CALL_LIMIT => return Err(Stop::Heavy),
            _ => {}
        }
        let found = (outcome, cost.saturating_add(self.composition.take_cost()));
        self.known.borrow_mut().insert(address, found.clone());
        Ok(found)
    }

    /// Reports whether all conditions hold. A false one decides; errors count only if none is false.
    pub fn conditions_hold(&self, conditions: &[Condition]) -> Result<Result<bool, String>, Stop> {
        let mut budget = CONDITIONS_BUDGET;
        let mut failures = Vec::new();
        for condition in conditions {
            match self.value(&condition.program, &condition.text, &mut budget) {
                Ok(Ok(Evaluated::Bool(true))) => {}
                Ok(Ok(_)) => return Ok(Ok(false)),
                Ok(Err(why)) => failures.push(why),
                Err(Stop::OutOfBudget) => return Ok(Err(OUT_OF_BUDGET.to_owned())),
                Err(pending) => return Err(pending),
            }
        }
        match failures.as_slice() {
            [] => Ok(Ok(true)),
            [one] => Ok(Err(one.clone())),
            several => Ok(Err(format!("[{}]", several.join(", ")))),
        }
    }
}

/// Variables of a write besides its objects.
pub struct RequestVariables {
    request: Value,
    namespace: Option<Value>,
    resource: ResourceTarget,
}

impl RequestVariables {
    fn new(subject: &Subject<'_>) -> Self {
        let attributes = subject.attributes;
        let kind = &attributes.requested.kind;
        let resource = ResourceTarget {
            group: kind.group().to_owned(),
            resource: kind.resource().to_owned(),
            subresource: attributes.subresource().to_owned(),
            namespace: attributes.context.namespace.to_owned(),
            name: attributes.name.to_owned(),
            ..ResourceTarget::default()
        };
        let mut namespace = subject.namespace.cloned();
        // Only the declared fields of the namespace type are visible.
        if let Some(metadata) = namespace.as_mut().and_then(|of| of.get_mut("metadata")?.as_object_mut()) {
            metadata.remove("managedFields");
            metadata.remove("ownerReferences");
        }
        Self { request: request(attributes, subject.object.or(subject.old)), namespace, resource }
    }
}

/// Runs `work`. Whenever it needs an authorizer decision, obtains it and resumes.
pub async fn evaluate<T>(
    subject: &Subject<'_>,
    programs: &[(String, Compiled)],
    work: impl Fn(&Evaluation<'_, '_>) -> Result<T, Stop>,
) -> Result<Result<T, Stop>> {
    let request_variables = RequestVariables::new(subject);
    let mut evaluation = Evaluation::new(subject, &request_variables, programs);
    for _ in 0..MAX_AUTHORIZER_CHECKS {
        match work(&evaluation) {
            Err(Stop::NeedsDecision(check)) => {
                let decision = ask(subject, &check).await;
                evaluation.answers.get_mut().add(*check, decision);
            }
            Err(Stop::Heavy) => {
                offload::heavy().await;
                evaluation.limit = PER_CALL_LIMIT;
            }
            outcome => return Ok(outcome),
        }
    }
    Ok(Err(Stop::OutOfBudget))
}

/// Reports whether all conditions of a webhook hold; the inner error is that of an evaluation.
pub async fn conditions_hold(
    conditions: &[Condition],
    subject: &Subject<'_>,
) -> Result<Result<bool, String>> {
    let outcome = evaluate(subject, &[], |evaluation| evaluation.conditions_hold(conditions)).await?;
    Ok(outcome.unwrap_or_else(|_| Err(OUT_OF_BUDGET.to_owned())))
}

async fn ask(subject: &Subject<'_>, check: &Check) -> expressions::Decision {
    let account = check.service_account.as_ref().map(|(namespace, name)| UserInfo {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ],
        ..UserInfo::default()
    });
    let user = account.as_ref().unwrap_or(subject.attributes.context.user);
    let wanted = match &check.about {
        CheckTarget::Path(path) => authorize::Attributes { verb: &check.verb, path, ..Default::default() },
        CheckTarget::Resource(about) => authorize::Attributes {
            verb: &check.verb,
            is_resource: true,
            group: &about.group,
            version: "*",
            resource: &about.resource,
            subresource: &about.subresource,
            namespace: &about.namespace,
            name: &about.name,
            field_selector: &about.field_selector,
            label_selector: &about.label_selector,
            ..Default::default()
        },
        CheckTarget::Nothing | CheckTarget::Group(_) => authorize::Attributes::default(),
    };
    match subject.registry.authorization.decide(user, &wanted).await {
        Ok(Decision::Allowed(reason)) => {
            expressions::Decision { allowed: true, reason: reason.to_string(), error: None }
        }
        Ok(Decision::Denied(reason) | Decision::NoOpinion(reason)) => {
            expressions::Decision { allowed: false, reason, error: None }
        }
        Err(status) => {
            expressions::Decision { allowed: false, reason: String::new(), error: Some(status.message) }
        }
    }
}
