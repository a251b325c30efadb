//! Whether a default value is what its schema says, in the words that Kubernetes has for what it is not.

use super::formats;
use super::patterns;
use super::schema::{Additional, Schema};
use machinery::Value;
use machinery::field::{ErrorKind, ErrorList, FieldError, Path, show, show_str};

/// What is wrong with a default value by its schema. Errors name places below `base`.
pub fn check_default(value: &Value, schema: Schema<'_>, base: &Path<'_>) -> ErrorList {
    let mut outcome = Outcome::default();
    Check { base }.value(value, schema, &Path::ROOT, &mut outcome);
    outcome.errors.into_iter().map(|(_, error)| error).collect()
}

/// What was found so far. Of alternatives that all fail, the one with the most matches is told.
#[derive(Default)]
struct Outcome {
    /// With the text by which equal ones are known.
    errors: Vec<(String, FieldError)>,
    matches: usize,
}

impl Outcome {
    fn add(&mut self, message: String, error: FieldError) {
        if !self.errors.iter().any(|(known, _)| *known == message) {
            self.errors.push((message, error));
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        for (message, error) in other.errors {
            self.add(message, error);
        }
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

struct Check<'b> {
    base: &'b Path<'b>,
}

/// How messages of a kind show the value.
enum Shown<'v> {
    Value(&'v Value),
    Text(&'v str),
    None,
}

impl Check<'_> {
    /// Something is wrong with the value at a place.
    fn fail(&self, kind: ErrorKind, at: &Path<'_>, shown: Shown<'_>, message: String, outcome: &mut Outcome) {
        let value = match shown {
            Shown::Value(value) => Some(show(value)),
            Shown::Text(text) => Some(show_str(text)),
            Shown::None => None,
        };
        let detail = if value.is_some() { message.clone() } else { String::new() };
        let error = FieldError { kind, field: self.field(at), value, detail };
        outcome.add(message, error);
    }

    /// Something that no single place is to blame for.
    fn fail_whole(&self, message: String, outcome: &mut Outcome) {
        outcome.add(message.clone(), FieldError::invalid_str(self.base, "", message));
    }

    fn field(&self, at: &Path<'_>) -> String {
        let name = at.to_string();
        match name.trim_start_matches('.') {
            "" => self.base.to_string(),
            name => match self.base.to_string() {
                base if base.is_empty() => name.to_owned(),
                base => format!("{base}.{name}"),
            },
        }
    }

    fn invalid(&self, at: &Path<'_>, value: &Value, what: &str, outcome: &mut Outcome) {
        self.fail(ErrorKind::Invalid, at, Shown::Value(value), format!("{at} in body {what}"), outcome);
    }

    fn value(&self, value: &Value, schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        self.type_of(value, schema, at, outcome);
        if value.is_null() {
            self.enumeration(value, schema, at, outcome);
            outcome.matches += 2;
            return;
        }
        self.junctors(value, schema, at, outcome);
        match value {
            Value::String(text) => self.text(text, value, schema, at, outcome),
            Value::Number(_) => self.number(value, schema, at, outcome),
            Value::Array(items) => self.list(items, schema, at, outcome),
            _ => {}
        }
        self.enumeration(value, schema, at, outcome);
        if let Value::Object(map) = value {
            self.object(map, schema, at, outcome);
        }
        outcome.matches += 2;
    }

    fn type_of(&self, value: &Value, schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        let kind = schema.kind();
        let format = schema.text("format");
        if kind.is_empty() && format.is_empty() {
            return;
        }
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::String(_) => "string",
            Value::Number(number) if number.is_i64() => "integer",
            Value::Number(_) => "number",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let is_whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
        let fits = match found {
            "null" => schema.flag("nullable") || kind.is_empty(),
            // A format says what strings are.
            "string" | "array" if !format.is_empty() && !is_numeric(kind) => true,
            "integer" => is_numeric(kind),
            "number" => kind == "number" || is_whole && kind == "integer",
            found => kind == found,
        };
        if fits {
            outcome.matches += 1;
            return;
        }
        let (wanted, found) = match found {
            "integer" if !matches!(format, "" | "int64") => (format, "int64"),
            "number" if !format.is_empty() => (format, "float64"),
            "boolean" | "object" if !format.is_empty() => (format, ""),
            found => (kind, found),
        };
        let message = format!("{at} in body must be of type {wanted}: {found:?}");
        self.fail(ErrorKind::TypeInvalid, at, Shown::Text(found), message, outcome);
    }

    fn junctors(&self, value: &Value, schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        let outcome_of = |of: Schema<'_>| {
            let mut outcome = Outcome::default();
            self.value(value, of, at, &mut outcome);
            outcome
        };
        let best = |failures: Vec<Outcome>| {
            let first_of_most =
                |best: Outcome, next: Outcome| if next.matches > best.matches { next } else { best };
            failures.into_iter().reduce(first_of_most)
        };
        let name = show_str(&at.to_string());
        let any_of: Vec<Outcome> = schema.list("anyOf").map(outcome_of).collect();
        if !any_of.is_empty() && !any_of.iter().any(Outcome::is_valid) {
            self.fail_whole(format!("{name} must validate at least one schema (anyOf)"), outcome);
            best(any_of).into_iter().for_each(|failure| outcome.merge(failure));
        }
        let one_of: Vec<Outcome> = schema.list("oneOf").map(outcome_of).collect();
        let valid = one_of.iter().filter(|outcome| outcome.is_valid()).count();
        if !one_of.is_empty() && valid != 1 {
            let found = match valid {
                0 => "Found none valid".to_owned(),
                several => format!("Found {several} valid alternatives"),
            };
            let message = format!("{name} must validate one and only one schema (oneOf). {found}");
            self.fail_whole(message, outcome);
            if valid == 0 {
                best(one_of).into_iter().for_each(|failure| outcome.merge(failure));
            }
        }
        let all_of: Vec<Outcome> = schema.list("allOf").map(outcome_of).collect();
        let (count, valid) = (all_of.len(), all_of.iter().filter(|outcome| outcome.is_valid()).count());
        all_of.into_iter().for_each(|of| outcome.merge(of));
        if valid != count {
            let none = if valid == 0 { ". None validated" } else { "" };
            self.fail_whole(format!("{name} must validate all the schemas (allOf){none}"), outcome);
        }
        if schema.child("not").is_some_and(|not| outcome_of(not).is_valid()) {
            self.fail_whole(format!("{name} must not validate the schema (not)"), outcome);
        }
        outcome.matches += 2;
    }

    fn text(&self, text: &str, value: &Value, schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let pattern = schema.text("pattern");
        if let Some(most) = schema.limit("maxLength").filter(|most| length > *most) {
            let message = format!("{at} in body should be at most {most} chars long");
            let path = Path::ROOT;
            let most = usize::try_from(most).unwrap_or(0);
            let error = FieldError { field: self.field(at), ..FieldError::too_long(&path, most) };
            outcome.add(message, error);
        } else if let Some(least) = schema.limit("minLength").filter(|least| length < *least) {
            self.invalid(at, value, &format!("should be at least {least} chars long"), outcome);
        } else if !pattern.is_empty()
            && !patterns::compile(pattern).is_ok_and(|pattern| pattern.is_match(text))
        {
            self.invalid(at, value, &format!("should match '{pattern}'"), outcome);
        } else {
            outcome.matches += 1;
        }
        let format = schema.text("format");
        if formats::is_of(format, text) == Some(false) {
            let message = format!("{at} in body must be of type {format}: {}", show_str(text));
            self.fail(ErrorKind::TypeInvalid, at, Shown::Value(value), message, outcome);
        }
    }

    fn number(&self, value: &Value, schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        let Some(number) = value.as_f64() else { return };
        self.range("Checked", number, schema, at, outcome);
        let limit = |field: &str| schema.field(field).as_f64();
        // Limits of whole numbers are whole themselves, unless the type says otherwise.
        let is_whole = value.is_i64() && schema.kind() != "integer";
        let shown = |limit: f64| if is_whole { limit.trunc() } else { limit };
        for (field, what) in
            [("multipleOf", "MultipleOf"), ("minimum", "Minimum boundary"), ("maximum", "Maximum boundary")]
        {
            if let Some(limit) = limit(field) {
                self.range(what, limit, schema, at, outcome);
            }
        }
        if let Some(factor) = limit("multipleOf").map(shown) {
            let times = number / factor;
            if factor <= 0.0 {
                let message =
                    format!("factor MultipleOf declared for {at} must be positive: {}", show_number(factor));
                self.fail(ErrorKind::Invalid, at, Shown::Value(value), message, outcome);
            } else if times.fract() != 0.0 {
                self.invalid(at, value, &format!("should be a multiple of {}", show_number(factor)), outcome);
            }
        }
        if let Some(least) = limit("minimum").map(shown) {
            let exclusive = schema.flag("exclusiveMinimum");
            if number < least || exclusive && number <= least {
                let words = if exclusive { "greater than" } else { "greater than or equal to" };
                self.invalid(at, value, &format!("should be {words} {}", show_number(least)), outcome);
            }
        }
        if let Some(most) = limit("maximum").map(shown) {
            let exclusive = schema.flag("exclusiveMaximum");
            if number > most || exclusive && number >= most {
                let words = if exclusive { "less than" } else { "less than or equal to" };
                self.invalid(at, value, &format!("should be {words} {}", show_number(most)), outcome);
            }
        }
        outcome.matches += 1;
    }

    /// Values and limits must be numbers of the type.
    fn range(&self, what: &str, number: f64, schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        let kind = schema.kind();
        let format = Some(schema.text("format")).filter(|format| is_format(kind, format)).unwrap_or("");
        let is_whole = |least: f64, most: f64| number.fract() == 0.0 && (least..=most).contains(&number);
        let fits = match (kind, format) {
            ("integer", "int32") => is_whole(f64::from(i32::MIN), f64::from(i32::MAX)),
            ("integer", _) => is_whole(-9.3e18, 9.2e18),
            ("number", "float") => number.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if !fits {
            let of = match format {
                "" => format!("{kind} (default format)"),
                format => format!("{kind} with format {format}"),
            };
            self.fail_whole(format!("{what} value must be of type {of} in {at}"), outcome);
        }
    }

    fn list(&self, items: &[Value], schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        if let Some(of) = schema.items() {
            for (index, item) in items.iter().enumerate() {
                self.value(item, of, &at.index(index), outcome);
            }
        }
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(least) = schema.limit("minItems").filter(|least| count < *least) {
            self.invalid(at, &count.into(), &format!("should have at least {least} items"), outcome);
        }
        if let Some(most) = schema.limit("maxItems").filter(|most| count > *most) {
            self.too_many(at, items.len(), most, "items", outcome);
        }
        outcome.matches += 2;
    }

    fn too_many(&self, at: &Path<'_>, count: usize, most: i64, what: &str, outcome: &mut Outcome) {
        let message = format!("{at} in body should have at most {most} {what}");
        let most = usize::try_from(most).unwrap_or(0);
        let error = FieldError { field: self.field(at), ..FieldError::too_many(&Path::ROOT, count, most) };
        outcome.add(message, error);
    }

    fn enumeration(&self, value: &Value, schema: Schema<'_>, at: &Path<'_>, outcome: &mut Outcome) {
        let allowed = schema.field("enum").as_array().map_or(&[][..], Vec::as_slice);
        let same = |allowed: &Value| match (allowed.as_f64(), value.as_f64()) {
            (Some(allowed), Some(value)) => allowed == value,
            _ => allowed == value,
        };
        if allowed.is_empty() || allowed.iter().any(same) {
            return;
        }
        let texts: Vec<String> = allowed
            .iter()
            .map(|allowed| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let error = FieldError::not_supported(&Path::ROOT, value, &texts);
        let message = format!("{at} in body should be one of [{}]", texts.join(" "));
        outcome.add(message, FieldError { field: self.field(at), ..error });
    }

    fn object(
        &self,
        map: &machinery::Map<String, Value>,
        schema: Schema<'_>,
        at: &Path<'_>,
        outcome: &mut Outcome,
    ) {
        let count = i64::try_from(map.len()).unwrap_or(i64::MAX);
        if let Some(least) = schema.limit("minProperties").filter(|least| count < *least) {
            self.invalid(at, &count.into(), &format!("should have at least {least} properties"), outcome);
        }
        if let Some(most) = schema.limit("maxProperties").filter(|most| count > *most) {
            self.too_many(at, map.len(), most, "properties", outcome);
        }
        let at_root = at.to_string().is_empty();
        for (name, value) in map {
            if let Some(of) = schema.property(name) {
                self.value(value, of, &at.child(name), outcome);
                continue;
            }
            match schema.additional() {
                Some(Additional::Of(of)) if at_root => {
                    self.value(value, of, &Path::new(&format!(".{name}")), outcome);
                }
                Some(Additional::Of(of)) => self.value(value, of, &at.child(name), outcome),
                Some(Additional::Allowed(false)) => {
                    let message = format!("{at}.{name} in body is a forbidden property");
                    self.fail(ErrorKind::Invalid, at, Shown::Text(""), message, outcome);
                }
                _ => {}
            }
        }
        for name in schema.required() {
            if !map.contains_key(name) {
                let message = format!("{at}.{name} in body is required");
                self.fail(ErrorKind::Required, &at.child(name), Shown::None, message, outcome);
            }
        }
        outcome.matches += 1;
    }
}

fn is_numeric(kind: &str) -> bool {
    matches!(kind, "integer" | "number")
}

/// Whether a format means something for a type.
pub fn is_format(kind: &str, format: &str) -> bool {
    match kind {
        "" | "string" => formats::is_known(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// A number as Go prints it.
fn show_number(number: f64) -> String {
    if number == 0.0 || (1e-4..1e21).contains(&number.abs()) {
        return format!("{number}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(value: &Value, schema: &Value) -> String {
        let errors = check_default(value, Schema(schema), &Path::new("d"));
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn values_are_what_schemas_say() {
        for (schema, value, want) in [
            (json!({"type": "string"}), json!("a"), ""),
            (
                json!({"type": "string"}),
                json!(1),
                r#"d: Invalid value: "integer":  in body must be of type string: "integer""#,
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}),
                json!({"a": ["x", 1]}),
                r#"d.a[1]: Invalid value: "integer": a[1] in body must be of type string: "integer""#,
            ),
            (json!({"type": "object", "required": ["must"]}), json!({}), "d.must: Required value"),
            (
                json!({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}}),
                json!({"a": 1, "b": 2, "c": "x"}),
                r#"d: Too many: 3: must have at most 2 items; d.c: Invalid value: "string": .c in body must be of type integer: "string""#,
            ),
            (
                json!({"type": "string", "enum": ["a", "b"]}),
                json!("c"),
                r#"d: Unsupported value: "c": supported values: "a", "b""#,
            ),
            (
                json!({"type": "integer", "minimum": 0}),
                json!(-1),
                "d: Invalid value: -1:  in body should be greater than or equal to 0",
            ),
            (json!({"type": "integer"}), json!(1.0), ""),
            (
                json!({"type": "number", "maximum": 1.5}),
                json!(2),
                "d: Invalid value: 2:  in body should be less than or equal to 1",
            ),
            (
                json!({"type": "string", "maxLength": 2}),
                json!("abc"),
                "d: Too long: may not be more than 2 bytes",
            ),
            (
                json!({"type": "string", "pattern": "^a"}),
                json!("b"),
                r#"d: Invalid value: "b":  in body should match '^a'"#,
            ),
            (
                json!({"type": "string", "format": "date-time"}),
                json!("x"),
                r#"d: Invalid value: "x":  in body must be of type date-time: "x""#,
            ),
            (json!({"x-kubernetes-int-or-string": true}), json!(true), ""),
            (
                json!({"type": "integer", "minimum": 1.5}),
                json!(1),
                "d: Invalid value: \"\": Minimum boundary value must be of type integer (default format) in ; d: Invalid value: 1:  in body should be greater than or equal to 1.5",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
                json!({}),
                r#"d: Invalid value: "": "" must validate one and only one schema (oneOf). Found none valid; d.a: Required value"#,
            ),
            (json!({"type": "string", "nullable": true}), json!(null), ""),
            (
                json!({"type": "string"}),
                json!(null),
                r#"d: Invalid value: "null":  in body must be of type string: "null""#,
            ),
        ] {
            assert_eq!(told(&value, &schema), want, "{value} by {schema}");
        }
    }

    #[test]
    fn numbers_are_shown_as_go_shows_them() {
        for (number, shown) in [(0.0, "0"), (1000.0, "1000"), (0.5, "0.5"), (1e21, "1e+21"), (1e-7, "1e-07")]
        {
            assert_eq!(show_number(number), shown);
        }
    }
}
