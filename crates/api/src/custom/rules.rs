//! Validation of `x-kubernetes-validations`: CEL rules of schemas.

use super::schema::Schema;
use super::{field_path, structural};
use crate::validation::dump::{Shape, dump};
use crate::value::Fields;
use expressions::openapi::{Declared, declare};
use expressions::{Environment, Program, Type};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// Estimated cost limits of one rule, and of all rules of a schema.
const RULE_LIMIT: u64 = 10_000_000;
const TOTAL_LIMIT: u64 = 100_000_000;
/// Number of the most expensive rules in the message about the total cost.
const MAX_NAMED: usize = 4;

const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

const RULE: &[crate::validation::dump::Field] = &[
    ("rule", "Rule", Shape::Text),
    ("message", "Message", Shape::Text),
    ("messageExpression", "MessageExpression", Shape::Text),
    ("reason", "Reason", Shape::Optional),
    ("fieldPath", "FieldPath", Shape::Text),
    ("optionalOldSelf", "OptionalOldSelf", Shape::Optional),
];

/// Total cost of the rules of one schema.
#[derive(Debug, Default)]
pub struct Total {
    cost: u64,
    /// The most expensive rules, in descending order.
    named: Vec<(u64, String)>,
}

impl Total {
    fn add(&mut self, path: &Path<'_>, cost: u64) {
        self.cost = self.cost.saturating_add(cost);
        if cost >= TOTAL_LIMIT / 100 {
            self.named.push((cost, path.to_string()));
            self.named.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.named.truncate(MAX_NAMED);
        }
    }

    /// Errors of the total cost.
    pub fn check(&self, path: &Path<'_>) -> ErrorList {
        if self.cost <= TOTAL_LIMIT {
            return Vec::new();
        }
        let detail =
            "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let forbidden = FieldError::forbidden(path, detail);
        let named =
            self.named.iter().map(|(_, field)| FieldError { field: field.clone(), ..forbidden.clone() });
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let total = FieldError::forbidden(path, over_budget(what, self.cost, TOTAL_LIMIT));
        named.chain([total]).collect()
    }
}

/// Name of the type of `self` in messages.
pub const SELF_TYPE: &str = "selfType";

/// CEL environment of rules.
pub fn environment(declared: &Declared, optional_old: bool) -> Environment {
    let old = if optional_old { Type::optional(declared.of.clone()) } else { declared.of.clone() };
    Environment::new([("self", declared.of.clone()), ("oldSelf", old)])
}

/// Compiles a rule.
pub fn compile(environment: &Environment, text: &str) -> Result<Program, String> {
    match environment.compile(text) {
        Err(error) => Err(error.to_string()),
        Ok(program) if *program.result_type() != Type::Bool => {
            Err("cel expression must evaluate to a bool".to_owned())
        }
        Ok(program) => Ok(program),
    }
}

/// Position of a schema with rules.
#[derive(Clone, Copy)]
pub struct RulePosition<'p> {
    /// The values have `kind`, `apiVersion` and `metadata`.
    pub is_resource: bool,
    /// Maximum number of values, if limited by the schemas above.
    pub count: Option<u64>,
    /// Ancestor that prevents correlation of old and new values.
    pub uncorrelated: Option<&'p Path<'p>>,
    /// The costs of single rules were accepted before.
    pub any_cost: bool,
}

/// Validates the fields of rules.
pub fn check_form(schema: Schema<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let path = path.child("x-kubernetes-validations");
    for (index, rule) in schema.rules().iter().enumerate() {
        let path = path.index(index);
        let (text, message) = (rule.text("rule").trim(), rule.text("message"));
        let has_lines = |text: &str| text.contains(['\n', '\r']);
        if text.is_empty() {
            errors.push(FieldError::required(&path.child("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            let detail = "must be non-empty if specified";
            errors.push(FieldError::invalid_str(&path.child("message"), message, detail));
        } else if has_lines(message.trim()) {
            let detail = "must not contain line breaks";
            errors.push(FieldError::invalid_str(&path.child("message"), message, detail));
        } else if has_lines(text) && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(&path.child("message"), detail));
        }
        let expression = rule.text("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(&path.child("messageExpression"), detail));
        }
        if rule.opt_text("reason").is_some_and(|reason| !REASONS.contains(&reason)) {
            errors.push(FieldError::not_supported(&path.child("reason"), rule.field("reason"), &REASONS));
        }
        let (at, path) = (rule.text("fieldPath"), path.child("fieldPath"));
        if at.is_empty() {
            continue;
        }
        if at.trim().is_empty() {
            errors.push(FieldError::invalid_str(&path, at, "must be non-empty if specified"));
        }
        if has_lines(at) {
            errors.push(FieldError::invalid_str(&path, at, "must not contain line breaks"));
        }
        if structural::unsupported(schema).is_none() && field_path::follow(at, Some(schema), true).is_err() {
            errors.push(FieldError::invalid_str(&path, at, "must be a valid path"));
        }
    }
}

/// Validates the expressions of rules with valid fields.
pub fn check(
    schema: Schema<'_>,
    position: RulePosition<'_>,
    total: &mut Total,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let path = path.child("x-kubernetes-validations");
    let Some(declared) = declare(schema.0, position.is_resource, SELF_TYPE) else {
        let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
        errors.push(FieldError::internal(&path, detail));
        return;
    };
    for (index, rule) in schema.rules().iter().enumerate() {
        check_rule(rule, &declared, position, total, &path.index(index), errors);
    }
}

fn check_rule(
    rule: &Value,
    declared: &Declared,
    position: RulePosition<'_>,
    total: &mut Total,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let environment = environment(declared, rule.flag("optionalOldSelf"));
    let text = rule.text("rule");
    let rejected =
        |path: &Path<'_>, detail: String| FieldError::invalid_shown(path, dump(rule, RULE), detail);
    let compiled = compile(&environment, text)
        .and_then(|_| environment.estimate(text, &declared.extent).map_err(|error| error.to_string()));
    let rule_path = path.child("rule");
    let estimate = match compiled {
        Ok(estimate) => estimate,
        Err(detail) => {
            total.add(&rule_path, 0);
            errors.push(rejected(&rule_path, detail));
            check_old(rule, false, position, path, errors);
            return;
        }
    };
    let cost = estimate.cost.saturating_mul(position.count.unwrap_or_else(|| declared.max_count()));
    if cost > RULE_LIMIT && !position.any_cost {
        let detail = over_budget("estimated rule cost", cost, RULE_LIMIT);
        errors.push(FieldError::forbidden(&rule_path, detail));
    }
    total.add(&rule_path, cost);
    let message = rule.text("messageExpression");
    if !message.is_empty() {
        let path = path.child("messageExpression");
        let compiled = match environment.compile(message) {
            Err(error) => Err(format!("messageExpression {error}")),
            Ok(program) if *program.result_type() != Type::String => {
                Err("messageExpression must evaluate to a string".to_owned())
            }
            Ok(_) => environment.estimate(message, &declared.extent).map_err(|error| error.to_string()),
        };
        match compiled {
            Err(detail) => errors.push(rejected(&path, detail)),
            Ok(estimate) => {
                if estimate.cost > RULE_LIMIT && !position.any_cost {
                    let detail = over_budget("estimated messageExpression cost", estimate.cost, RULE_LIMIT);
                    errors.push(FieldError::forbidden(&path, detail));
                }
                total.add(&path, estimate.cost);
            }
        }
    }
    check_old(rule, estimate.variables.contains("oldSelf"), position, path, errors);
}

/// Allows `oldSelf` only where old and new values can be correlated.
fn check_old(
    rule: &Value,
    uses_old: bool,
    position: RulePosition<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if uses_old {
        if let Some(within) = position.uncorrelated {
            let detail =
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {within}");
            errors.push(FieldError::invalid_str(&path.child("rule"), rule.text("rule"), detail));
        }
    } else if rule.has("optionalOldSelf") {
        let detail = "may not be set if oldSelf is not used in rule";
        let value = rule.field("optionalOldSelf");
        errors.push(FieldError::invalid(&path.child("optionalOldSelf"), value, detail));
    }
}

fn over_budget(what: &str, cost: u64, limit: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
