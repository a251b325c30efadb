//! Validation rules of a node, compiled once.

use super::field_path;
use super::observed::{ExpressionWork, timed};
use super::rules::{self, SELF_TYPE};
use super::schema::Schema;
use crate::value::Fields;
use expressions::openapi::declare;
use expressions::{Program, Type};
use machinery::Value;
use machinery::field::ErrorKind;

/// Index of `oldSelf` among the variables of rules.
const OLD_SELF: usize = 1;

/// Rules of one node, in their order.
#[derive(Debug)]
pub enum Rules {
    Compiled(Box<[Rule]>),
    /// Expressions cannot refer to values of this schema.
    Untyped,
}

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// The error is the message of the compiler.
    pub program: Result<Program, Box<str>>,
    /// The rule refers to `oldSelf`.
    pub uses_old: bool,
    pub optional_old: bool,
    /// Text of the rule in messages: its message, or the rule itself.
    pub shown: Box<str>,
    pub has_message: bool,
    pub message: Option<MessageExpression>,
    pub reason: ErrorKind,
    /// Field of errors, relative to the node.
    pub field: Option<Box<str>>,
}

/// A message expression of a rule.
#[derive(Debug)]
pub struct MessageExpression {
    pub text: Box<str>,
    pub program: Program,
}

/// Compiles the rules of a schema. `None` if it has none.
pub fn compile(schema: Schema<'_>, is_resource: bool) -> Option<Rules> {
    if schema.rules().is_empty() {
        return None;
    }
    timed(ExpressionWork::Compilation, || compile_rules(schema, is_resource))
}

fn compile_rules(schema: Schema<'_>, is_resource: bool) -> Option<Rules> {
    let Some(declared) = declare(schema.0, is_resource, SELF_TYPE) else {
        return Some(Rules::Untyped);
    };
    let of = |rule: &Value| {
        let text = rule.text("rule");
        // An empty rule is not evaluated.
        if text.trim().is_empty() {
            return None;
        }
        let optional_old = rule.flag("optionalOldSelf");
        let environment = rules::environment(&declared, optional_old);
        let program = rules::compile(&environment, text).map_err(String::into_boxed_str);
        let uses_old = program.as_ref().is_ok_and(|program| program.uses(OLD_SELF));
        let expression = rule.text("messageExpression");
        let message = (!expression.is_empty())
            .then(|| environment.compile_to(expression, &[Type::String]).ok())
            .flatten()
            .map(|program| MessageExpression { text: expression.into(), program });
        let shown = match rule.text("message") {
            "" => text.trim(),
            message => message.trim(),
        };
        let reason = match rule.text("reason") {
            "FieldValueForbidden" => ErrorKind::Forbidden,
            "FieldValueRequired" => ErrorKind::Required,
            "FieldValueDuplicate" => ErrorKind::Duplicate,
            _ => ErrorKind::Invalid,
        };
        let field = field_path::follow(rule.text("fieldPath"), Some(schema), true)
            .ok()
            .filter(|found| !found.path.is_empty())
            .map(|found| found.path.into_boxed_str());
        Some(Rule {
            program,
            uses_old,
            optional_old,
            shown: shown.into(),
            has_message: !rule.text("message").is_empty(),
            message,
            reason,
            field,
        })
    };
    Some(Rules::Compiled(schema.rules().iter().filter_map(of).collect()))
}
