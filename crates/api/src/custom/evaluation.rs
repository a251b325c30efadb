//! Evaluation of a schema's validation rules on values, within the cost limits of Kubernetes.

use super::correlation::{OldItems, Ratchet};
use super::node::{Node, NodeType};
use super::programs::{MessageExpression, Rule, Rules};
use super::typing::typed;
use expressions::{Fault, Inputs, Value as Typed};
use machinery::Value;
use machinery::field::{ErrorKind, ErrorList, FieldError, Path};

/// Cost limit of all rules of one object.
pub const BUDGET: u64 = 10_000_000;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
const MESSAGE_OUT_OF_BUDGET: &str = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
const UNTYPED: &str =
    "rule compiler initialization error: failed to convert to declType for CEL validation rules";
const MAX_MESSAGE: usize = 5 * 1024;

/// Findings of rules.
#[derive(Debug, Default)]
pub struct Findings {
    pub errors: ErrorList,
    /// Failures of unchanged values, which do not fail an update.
    pub warnings: Vec<String>,
}

/// Evaluates the rules of a node and of all nodes below it on a value that matches the schema. Transition rules are
/// evaluated where the old value is known. `budget` is reduced by the cost.
pub fn check<'v>(
    node: &'v Node,
    value: &'v Value,
    old: Option<&'v Value>,
    ratchet: Ratchet<'v>,
    budget: &mut u64,
    path: &Path<'_>,
) -> Findings {
    let mut findings = Findings::default();
    let mut evaluation = Evaluation { budget, findings: &mut findings };
    // A stop has added its error.
    let _ = evaluation.walk(node, value, old, ratchet, path);
    findings
}

struct Evaluation<'e> {
    budget: &'e mut u64,
    findings: &'e mut Findings,
}

/// Stops the evaluation of further rules.
struct Stop;

/// Result of a message expression.
enum Message {
    Text(String),
    /// The message of the rule is used instead.
    Unusable,
    /// Evaluation ends with this error.
    Stop(String),
}

impl Evaluation<'_> {
    fn walk<'v>(
        &mut self,
        node: &'v Node,
        value: &'v Value,
        old: Option<&'v Value>,
        ratchet: Ratchet<'v>,
        path: &Path<'_>,
    ) -> Result<(), Stop> {
        if value.is_null() || !node.below.rules {
            return Ok(());
        }
        if let Some(rules) = &node.rules {
            self.rules(rules, node, value, old.filter(|old| !old.is_null()), ratchet, path)?;
        }
        match value {
            Value::Array(items) => {
                let Some(of) = node.items.as_ref().filter(|of| of.below.rules) else { return Ok(()) };
                let old_items = OldItems::of(node, old);
                for (index, item) in items.iter().enumerate() {
                    let (old, ratchet) = (old_items.get(node, item), ratchet.item(&old_items, item));
                    self.walk(of, item, old, ratchet, &path.index(index))?;
                }
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    let old = old.and_then(|old| old.get(name));
                    let (of, path) = match (node.property(name), &node.additional) {
                        (Some(of), _) => (of, path.child(name)),
                        (None, Some(of)) => (of, path.key(name)),
                        (None, None) => continue,
                    };
                    self.walk(of, value, old, ratchet.field(name), &path)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn invalid(&mut self, path: &Path<'_>, node: &Node, detail: impl Into<String>) {
        self.findings.errors.push(at(path, FieldError::invalid_str(path, node.kind.name(), detail)));
    }

    fn rules<'v>(
        &mut self,
        rules: &Rules,
        node: &'v Node,
        value: &'v Value,
        old: Option<&'v Value>,
        ratchet: Ratchet<'v>,
        path: &Path<'_>,
    ) -> Result<(), Stop> {
        let Rules::Compiled(rules) = rules else {
            self.invalid(path, node, UNTYPED);
            return Ok(());
        };
        if *self.budget == 0 {
            self.invalid(path, node, OUT_OF_BUDGET);
            return Err(Stop);
        }
        let new = typed(node, value);
        let old = old.map(|old| typed(node, old));
        for rule in rules {
            let program = match &rule.program {
                Ok(program) => program,
                Err(why) => {
                    self.invalid(path, node, format!("rule compile error: {why}"));
                    continue;
                }
            };
            if rule.uses_old && old.is_none() && !rule.optional_old {
                continue;
            }
            let before = match (&old, rule.optional_old) {
                (Some(old), true) => Typed::some(old.clone()),
                (None, true) => Typed::Optional(None),
                (Some(old), false) => old.clone(),
                (None, false) => Typed::Null,
            };
            let variables = [new.clone(), before];
            let inputs = Inputs { variables: &variables, ..Inputs::default() };
            let (outcome, cost) = program.evaluate(&inputs);
            if !self.spend(cost) {
                self.invalid(path, node, OUT_OF_BUDGET);
                return Err(Stop);
            }
            let shown = &rule.shown;
            match outcome {
                Ok(Typed::Bool(true)) => {}
                Ok(_) => self.fail(rule, node, value, &inputs, ratchet, path)?,
                Err(fault @ Fault::Cost) => {
                    let detail = format!(
                        "'{fault}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
                    );
                    self.invalid(path, node, detail);
                    return Err(Stop);
                }
                Err(fault) if fault == Fault::no_such_overload() => {
                    let detail = format!(
                        "'{fault}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
                    );
                    self.invalid(path, node, detail);
                }
                Err(fault) => self.invalid(path, node, format!("{fault} evaluating rule: {shown}")),
            }
        }
        Ok(())
    }

    /// Reduces the budget. False if the cost exceeds it.
    fn spend(&mut self, cost: u64) -> bool {
        let left = self.budget.checked_sub(cost);
        *self.budget = left.unwrap_or(0);
        left.is_some()
    }

    /// Adds the error of a failed rule; a warning if ratcheting tolerates it.
    fn fail(
        &mut self,
        rule: &Rule,
        node: &Node,
        value: &Value,
        inputs: &Inputs<'_, '_>,
        ratchet: Ratchet<'_>,
        path: &Path<'_>,
    ) -> Result<(), Stop> {
        let message = rule.message.as_ref().map(|message| self.message(message, inputs));
        let tolerated = !rule.uses_old && ratchet.tolerates();
        let mut error = FieldError::invalid_str(path, node.kind.name(), "");
        error = at(path, error);
        if let Some(field) = &rule.field {
            error.field = path.child(field).to_string();
        }
        let mut add = |error: FieldError| {
            if tolerated {
                self.findings.warnings.push(error.to_string());
            } else {
                self.findings.errors.push(error);
            }
        };
        let detail = match message {
            Some(Message::Stop(detail)) => {
                add(FieldError { detail, ..error });
                return Err(Stop);
            }
            Some(Message::Text(text)) => text,
            Some(Message::Unusable) | None if rule.has_message => rule.shown.to_string(),
            Some(Message::Unusable) | None => format!("failed rule: {}", rule.shown),
        };
        let is_large = matches!(node.kind, NodeType::Object | NodeType::Array);
        let shown = (!is_large).then(|| machinery::field::show(value));
        let (value, detail) = match rule.reason {
            ErrorKind::Forbidden | ErrorKind::Required => (None, detail),
            ErrorKind::Duplicate => (shown, String::new()),
            _ => (shown, detail),
        };
        add(FieldError { kind: rule.reason, value, detail, ..error });
        Ok(())
    }

    fn message(&mut self, expression: &MessageExpression, inputs: &Inputs<'_, '_>) -> Message {
        let (outcome, cost) = expression.program.evaluate(inputs);
        if !self.spend(cost) {
            return Message::Stop(MESSAGE_OUT_OF_BUDGET.to_owned());
        }
        match outcome {
            Err(Fault::Cost) => Message::Stop(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                machinery::field::show_str(&expression.text)
            )),
            Ok(message) => {
                let text = message.as_str().map(str::trim).unwrap_or_default();
                let is_usable = !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
                if is_usable { Message::Text(text.to_owned()) } else { Message::Unusable }
            }
            Err(_) => Message::Unusable,
        }
    }
}

/// An error at a path; errors at the root of an object name `<nil>`, as Kubernetes' do.
fn at(path: &Path<'_>, error: FieldError) -> FieldError {
    let field = path.to_string();
    FieldError { field: if field.is_empty() { super::ROOT_FIELD.to_owned() } else { field }, ..error }
}

#[cfg(test)]
mod tests;
