//! Expressions about one write: their variables, their budget, and the answers of the authorizer.

use super::policy::Compiled;
use crate::admission::Attributes;
use crate::admission::webhooks::request;
use crate::authorize::{self, Decision};
use crate::registry::Registry;
use crate::user::UserInfo;
use api::value::Fields;
use expressions::admission::{self, CONDITIONS_BUDGET, Options};
use expressions::{
    About, Answers, Check, Composition, Environment, Fault, Inputs, Program, ResourceAbout, Type,
    Value as Evaluated,
};
use machinery::Value;
use machinery::status::Result;
use std::sync::LazyLock;

/// Nobody asks more of the authorizer about one write.
const MAX_QUESTIONS: usize = 100;

static HOOK_CONDITIONS: LazyLock<Environment> =
    LazyLock::new(|| admission::environment(Options { has_authorizer: true, ..Options::default() }));

/// A condition that must hold for a hook to be asked, or a policy to be looked at.
pub struct Condition {
    text: String,
    program: Compiled,
}

impl Condition {
    /// The `matchConditions` of a hook.
    pub fn of_hook(hook: &Value) -> Vec<Self> {
        // Most hooks have none; the environment is made for those that do.
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

/// The write that expressions are about.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub registry: &'a Registry,
    pub attributes: &'a Attributes<'a>,
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    pub namespace: Option<&'a Value>,
    pub params: Option<&'a Value>,
}

/// Why an evaluation cannot go on.
pub enum Stop {
    /// The authorizer must be asked first.
    Asks(Box<Check>),
    OutOfBudget,
}

pub const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Evaluates a policy's expressions one after the other, as long as the budget lasts.
pub struct Evaluation<'e, 'a> {
    variables: [Evaluated<'a>; 7],
    composition: Composition<'e, 'a>,
    answers: &'e Answers,
}

impl<'e, 'a> Evaluation<'e, 'a> {
    /// `told` is what [`told`] says of the subject.
    fn new(
        subject: &Subject<'a>,
        told: &'a Told,
        programs: &'e [(String, Compiled)],
        answers: &'e Answers,
    ) -> Self {
        let value = |of: Option<&'a Value>| of.map_or(Evaluated::Null, Evaluated::from);
        Self {
            variables: [
                value(subject.object),
                value(subject.old),
                value(told.namespace.as_ref()),
                Evaluated::from(&told.request),
                value(subject.params),
                Check::authorizer(),
                Check::resource(told.resource.clone()),
            ],
            composition: Composition::new(programs),
            answers,
        }
    }

    /// The value of an expression, or why it has none.
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
        let inputs = Inputs {
            variables: &self.variables,
            composed: Some(&self.composition),
            answers: Some(self.answers),
        };
        let (outcome, cost) = program.evaluate(&inputs);
        if let Err(Fault::Asks(check)) = outcome {
            return Err(Stop::Asks(Box::new((*check).clone())));
        }
        let cost = cost.saturating_add(self.composition.take_cost());
        *budget = budget.checked_sub(cost).ok_or(Stop::OutOfBudget)?;
        Ok(outcome.map_err(|fault| format!("expression '{text}' resulted in error: {fault}")))
    }

    /// Whether all conditions hold. One that is false decides; those that fail do only if none is.
    pub fn conditions_hold(&self, conditions: &[Condition]) -> Result<Result<bool, String>, Stop> {
        let mut budget = CONDITIONS_BUDGET;
        let mut failures = Vec::new();
        for condition in conditions {
            match self.value(&condition.program, &condition.text, &mut budget) {
                Ok(Ok(Evaluated::Bool(true))) => {}
                Ok(Ok(_)) => return Ok(Ok(false)),
                Ok(Err(why)) => failures.push(why),
                Err(Stop::OutOfBudget) => return Ok(Err(OUT_OF_BUDGET.to_owned())),
                Err(asks) => return Err(asks),
            }
        }
        match failures.as_slice() {
            [] => Ok(Ok(true)),
            [one] => Ok(Err(one.clone())),
            several => Ok(Err(format!("[{}]", several.join(", ")))),
        }
    }
}

/// What expressions are told of a write besides its objects.
pub struct Told {
    request: Value,
    namespace: Option<Value>,
    resource: ResourceAbout,
}

impl Told {
    fn new(subject: &Subject<'_>) -> Self {
        let attributes = subject.attributes;
        let kind = &attributes.requested.kind;
        let resource = ResourceAbout {
            group: kind.group().to_owned(),
            resource: kind.resource().to_owned(),
            subresource: attributes.subresource().to_owned(),
            namespace: attributes.context.namespace.to_owned(),
            name: attributes.name.to_owned(),
            ..ResourceAbout::default()
        };
        let mut namespace = subject.namespace.cloned();
        // Of the namespace, what its type declares can be seen.
        if let Some(metadata) = namespace.as_mut().and_then(|of| of.get_mut("metadata")?.as_object_mut()) {
            metadata.remove("managedFields");
            metadata.remove("ownerReferences");
        }
        Self { request: request(attributes, subject.object.or(subject.old)), namespace, resource }
    }
}

/// Evaluates; whenever the authorizer is needed, it is asked, and everything is evaluated again.
pub async fn evaluate<T>(
    subject: &Subject<'_>,
    programs: &[(String, Compiled)],
    work: impl Fn(&Evaluation<'_, '_>) -> Result<T, Stop>,
) -> Result<Result<T, Stop>> {
    let told = Told::new(subject);
    let mut answers = Answers::default();
    for _ in 0..MAX_QUESTIONS {
        let check = match work(&Evaluation::new(subject, &told, programs, &answers)) {
            Err(Stop::Asks(check)) => check,
            outcome => return Ok(outcome),
        };
        let decision = ask(subject, &check).await;
        answers.add(*check, decision);
    }
    Ok(Err(Stop::OutOfBudget))
}

/// Whether all conditions of a hook hold; the inner error is why that cannot be told.
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
        About::Path(path) => authorize::Attributes { verb: &check.verb, path, ..Default::default() },
        About::Resource(about) => authorize::Attributes {
            verb: &check.verb,
            is_resource: true,
            group: &about.group,
            version: "*",
            resource: &about.resource,
            subresource: &about.subresource,
            namespace: &about.namespace,
            name: &about.name,
            field_selector: &about.field_selector,
            ..Default::default()
        },
        About::Nothing | About::Group(_) => authorize::Attributes::default(),
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
