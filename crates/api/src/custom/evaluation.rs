//! Rules of a schema, evaluated on values.

use super::rules;
use super::schema::Schema;
use crate::value::Fields;
use base64::Engine;
use expressions::openapi::{declare, escape};
use expressions::{Environment, Fault, Inputs, Key, Type, Value as Typed};
use machinery::Value;
use machinery::field::{ErrorKind, ErrorList, FieldError, Path};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What all rules of one object may cost together.
pub const BUDGET: u64 = 10_000_000;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
const MAX_MESSAGE: usize = 5 * 1024;

/// What the rules of a schema and of all schemas in it have against a value that fits the schema. `old` is what the
/// value was before; rules about that are not asked where it is unknown. `budget` is what may still be spent.
pub fn check(
    value: &Value,
    old: Option<&Value>,
    schema: Schema<'_>,
    is_resource: bool,
    budget: &mut u64,
    path: &Path<'_>,
) -> ErrorList {
    let mut errors = Vec::new();
    let mut evaluation = Evaluation { budget, errors: &mut errors };
    let _ = evaluation.walk(value, old, schema, is_resource, path);
    errors
}

struct Evaluation<'e> {
    budget: &'e mut u64,
    errors: &'e mut ErrorList,
}

/// Nothing more is to be evaluated.
struct Stop;

impl Evaluation<'_> {
    fn walk(
        &mut self,
        value: &Value,
        old: Option<&Value>,
        schema: Schema<'_>,
        is_resource: bool,
        path: &Path<'_>,
    ) -> Result<(), Stop> {
        if value.is_null() || !schema.any(&|of| !of.rules().is_empty()) {
            return Ok(());
        }
        let is_resource = is_resource || schema.is_embedded();
        self.rules(value, old, schema, is_resource, path)?;
        match value {
            Value::Array(items) => {
                let Some(of) = schema.items() else { return Ok(()) };
                for (index, item) in items.iter().enumerate() {
                    // Which item was which before is known of maps only.
                    let old = old.filter(|_| schema.list_type() == Some("map")).and_then(|old| {
                        let same =
                            |other: &&Value| schema.map_keys().all(|key| other.field(key) == item.field(key));
                        old.as_array()?.iter().find(same)
                    });
                    self.walk(item, old, of, false, &path.index(index))?;
                }
            }
            Value::Object(map) => {
                let correlates = schema.map_type() != Some("atomic");
                for (name, value) in map {
                    let old = old.filter(|_| correlates).and_then(|old| old.get(name));
                    if let Some(of) = schema.property(name) {
                        self.walk(value, old, of, false, &path.child(name))?;
                    } else if let Some(of) = schema.additional_schema() {
                        self.walk(value, old, of, false, &path.key(name))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn invalid(&mut self, path: &Path<'_>, schema: Schema<'_>, detail: impl Into<String>) {
        self.errors.push(FieldError::invalid_str(path, schema.kind(), detail));
    }

    fn rules(
        &mut self,
        value: &Value,
        old: Option<&Value>,
        schema: Schema<'_>,
        is_resource: bool,
        path: &Path<'_>,
    ) -> Result<(), Stop> {
        if schema.rules().is_empty() {
            return Ok(());
        }
        let Some(declared) = declare(schema.0, is_resource, rules::SELF_TYPE) else {
            let why =
                "rule compiler initialization error: failed to convert to declType for CEL validation rules";
            self.invalid(path, schema, why);
            return Ok(());
        };
        let (new, old) = (typed(value, schema), old.map(|old| typed(old, schema)));
        for rule in schema.rules() {
            let text = rule.text("rule");
            let is_optional = rule.flag("optionalOldSelf");
            let environment = rules::environment(&declared, is_optional);
            let program = match rules::compile(&environment, text) {
                Ok(program) => program,
                Err(why) => {
                    self.invalid(path, schema, format!("rule compile error: {why}"));
                    continue;
                }
            };
            let uses_old = environment
                .estimate(text, &declared.extent)
                .is_ok_and(|estimate| estimate.variables.contains("oldSelf"));
            if uses_old && old.is_none() && !is_optional {
                continue;
            }
            let before = match (&old, is_optional) {
                (Some(old), true) => Typed::some(old.clone()),
                (None, true) => Typed::Optional(None),
                (Some(old), false) => old.clone(),
                (None, false) => Typed::Null,
            };
            let variables = [new.clone(), before];
            let inputs = Inputs { variables: &variables, ..Inputs::default() };
            let (outcome, cost) = program.evaluate(&inputs);
            self.spend(cost, path, schema)?;
            let shown = shown_rule(rule);
            match outcome {
                Ok(Typed::Bool(true)) => {}
                Ok(_) => self.refuse(rule, value, schema, &environment, &inputs, path)?,
                Err(fault @ Fault::Cost) => {
                    let why = format!(
                        "'{fault}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
                    );
                    self.invalid(path, schema, why);
                    return Err(Stop);
                }
                Err(fault) if fault == Fault::no_such_overload() => {
                    let why = format!(
                        "'{fault}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
                    );
                    self.invalid(path, schema, why);
                }
                Err(fault) => self.invalid(path, schema, format!("{fault} evaluating rule: {shown}")),
            }
        }
        Ok(())
    }

    fn spend(&mut self, cost: u64, path: &Path<'_>, schema: Schema<'_>) -> Result<(), Stop> {
        match self.budget.checked_sub(cost) {
            Some(left) => {
                *self.budget = left;
                Ok(())
            }
            None => {
                *self.budget = 0;
                self.invalid(path, schema, OUT_OF_BUDGET);
                Err(Stop)
            }
        }
    }

    /// A rule does not hold: why, in its own words if it has some.
    fn refuse(
        &mut self,
        rule: &Value,
        value: &Value,
        schema: Schema<'_>,
        environment: &Environment,
        inputs: &Inputs<'_, '_>,
        path: &Path<'_>,
    ) -> Result<(), Stop> {
        let mut detail = None;
        let expression = rule.text("messageExpression");
        if !expression.is_empty()
            && let Ok(program) = environment.compile_to(expression, &[Type::String])
        {
            let (outcome, cost) = program.evaluate(inputs);
            self.spend(cost, path, schema)?;
            let message =
                outcome.ok().and_then(|message| message.as_str().map(|text| text.trim().to_owned()));
            let fits = |text: &String| !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
            detail = message.filter(fits);
        }
        let detail = detail.unwrap_or_else(|| match rule.text("message") {
            "" => format!("failed rule: {}", shown_rule(rule)),
            message => message.trim().to_owned(),
        });
        let field = match super::field_path::follow(rule.text("fieldPath"), Some(schema), true) {
            Ok(found) if !found.path.is_empty() => format!("{path}.{}", found.path),
            _ => path.to_string(),
        };
        let is_large = matches!(schema.kind(), "object" | "array");
        let shown = (!is_large).then(|| machinery::field::show(value));
        let (kind, value, detail) = match rule.text("reason") {
            "FieldValueForbidden" => (ErrorKind::Forbidden, None, detail),
            "FieldValueRequired" => (ErrorKind::Required, None, detail),
            "FieldValueDuplicate" => (ErrorKind::Duplicate, shown, String::new()),
            _ => (ErrorKind::Invalid, shown, detail),
        };
        self.errors.push(FieldError { kind, field, value, detail });
        Ok(())
    }
}

fn shown_rule(rule: &Value) -> &str {
    match rule.text("message") {
        "" => rule.text("rule").trim(),
        message => message.trim(),
    }
}

/// A value as expressions see it: formats are types of their own, names are escaped.
fn typed<'a>(value: &'a Value, schema: Schema<'_>) -> Typed<'a> {
    match value {
        _ if schema.is_int_or_string() => Typed::from(value),
        Value::Array(items) => match schema.items() {
            Some(of) => Typed::list(items.iter().map(|item| typed(item, of)).collect()),
            None => Typed::from(value),
        },
        Value::Object(map) => {
            let mut fields = BTreeMap::new();
            for (name, value) in map {
                let (key, of) = match (schema.property(name), schema.additional_schema()) {
                    (Some(of), _) => (escape(name), Some(of)),
                    (None, Some(of)) => (Some(name.clone()), Some(of)),
                    // Of resources, more is known than their schemas say.
                    (None, None) => (escape(name), None),
                };
                let value = of.map_or_else(|| Typed::from(value), |of| typed(value, of));
                if let Some(key) = key {
                    if key != *name {
                        fields.insert(Key::String(Arc::from(name.as_str())), value.clone());
                    }
                    fields.insert(Key::String(Arc::from(key)), value);
                }
            }
            Typed::map(fields)
        }
        Value::Number(number) if schema.kind() == "number" => {
            Typed::Double(number.as_f64().unwrap_or(f64::NAN))
        }
        Value::String(text) => {
            let converted = match schema.text("format") {
                "date-time" => converted("timestamp", text),
                "date" => converted("timestamp", &format!("{text}T00:00:00Z")),
                "duration" => converted("duration", text),
                "byte" => base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .ok()
                    .map(|bytes| Typed::Bytes(bytes.into())),
                _ => None,
            };
            converted.unwrap_or_else(|| Typed::from(value))
        }
        _ => Typed::from(value),
    }
}

/// What a function of the language makes of a text.
fn converted(function: &str, text: &str) -> Option<Typed<'static>> {
    let environment = Environment::new([("text", Type::String)]);
    let program = environment.compile(&format!("{function}(text)")).ok()?;
    let variables = [Typed::from(text.to_owned())];
    let (outcome, _) = program.evaluate(&Inputs { variables: &variables, ..Inputs::default() });
    outcome.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(value: &Value, old: Option<&Value>, schema: &Value) -> String {
        let errors = check(value, old, Schema(schema), false, &mut { BUDGET }, &Path::new("v"));
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn rules_hold_or_are_told() {
        let schema = json!({"type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.min <= self.max", "message": "min first", "fieldPath": ".min"},
                {"rule": "self.name == oldSelf.name", "reason": "FieldValueForbidden"},
            ],
            "properties": {
                "min": {"type": "integer"}, "max": {"type": "integer"},
                "name": {"type": "string", "x-kubernetes-validations": [
                    {"rule": "self.size() < 5", "messageExpression": "'too long: ' + self"}]},
                "at": {"type": "string", "format": "date-time", "x-kubernetes-validations": [
                    {"rule": "self > timestamp('2020-01-01T00:00:00Z')"}]},
                "odd-name": {"type": "number", "x-kubernetes-validations": [{"rule": "self < 1.5"}]},
            },
        });
        let good = json!({"min": 1, "max": 2, "name": "abc", "at": "2021-01-01T00:00:00Z", "odd-name": 1});
        assert_eq!(told(&good, None, &schema), "");
        assert_eq!(told(&good, Some(&good), &schema), "");
        let bad = json!({"min": 3, "max": 2, "name": "abcdef", "at": "2019-01-01T00:00:00Z", "odd-name": 2});
        assert_eq!(
            told(&bad, Some(&good), &schema),
            [
                "v.min: Invalid value: min first",
                "v: Forbidden: failed rule: self.name == oldSelf.name",
                r#"v.at: Invalid value: "2019-01-01T00:00:00Z": failed rule: self > timestamp('2020-01-01T00:00:00Z')"#,
                r#"v.name: Invalid value: "abcdef": too long: abcdef"#,
                "v.odd-name: Invalid value: 2: failed rule: self < 1.5",
            ]
            .join("; ")
        );
    }

    #[test]
    fn a_budget_ends() {
        let schema = json!({"type": "array", "items": {"type": "integer"},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x <= y || y <= x))"}]});
        let value = json!((0..60).collect::<Vec<_>>());
        assert_eq!(told(&value, None, &schema), "");
        let errors = check(&value, None, Schema(&schema), false, &mut 100, &Path::new("v"));
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains("running out of cost budget"), "{}", errors[0]);
    }
}
