//! Validation of values by their schema, with the messages and the order of Kubernetes' OpenAPI validation.

mod numbers;
#[cfg(test)]
mod tests;

use super::correlation::{Correlated, is_type_field};
use super::formats;
use super::node::{Additional, Checks, Node, NodeType};
use machinery::field::{ErrorKind, ErrorList, FieldError, Path, show, show_str};
use machinery::{Map, Value};
use std::collections::HashSet;

/// Errors of a default value by its schema. Error paths are below `base`.
pub fn check_default(value: &Value, node: &Node, base: &Path<'_>) -> ErrorList {
    let check = ValueCheck { base, is_default: true };
    check.errors(value, node, None, true)
}

/// Errors of a custom resource, or of a part of one at `base`. Parts that equal their old values are not reported.
pub fn check(
    value: &Value,
    node: &Node,
    correlated: Option<Correlated<'_>>,
    is_root: bool,
    base: &Path<'_>,
) -> ErrorList {
    let check = ValueCheck { base, is_default: false };
    check.errors(value, node, correlated, is_root)
}

/// Findings so far. If all alternatives fail, the one with the most matches is reported.
#[derive(Default)]
struct ValueErrors {
    errors: Vec<FieldError>,
    /// Texts of errors, for deduplication.
    seen: HashSet<String>,
    messages: Vec<String>,
    matches: usize,
}

impl ValueErrors {
    fn add(&mut self, message: String, error: FieldError) {
        if self.seen.insert(message.clone()) {
            self.messages.push(message);
            self.errors.push(error);
        }
    }

    fn merge(&mut self, other: ValueErrors) {
        self.matches += other.matches;
        for (message, error) in other.messages.into_iter().zip(other.errors) {
            self.add(message, error);
        }
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

struct ValueCheck<'b> {
    base: &'b Path<'b>,
    /// Default values are validated by the structural schema: unknown formats are checked, and an int-or-string value
    /// has no type of its own.
    is_default: bool,
}

/// Value shown in a message.
enum Shown<'v> {
    Value(&'v Value),
    Text(&'v str),
    None,
}

impl ValueCheck<'_> {
    fn errors(
        &self,
        value: &Value,
        node: &Node,
        correlated: Option<Correlated<'_>>,
        is_root: bool,
    ) -> ErrorList {
        let mut outcome = ValueErrors::default();
        self.ratcheted(value, node, correlated, is_root, &Path::ROOT, &mut outcome);
        outcome.errors
    }

    /// Validates a value; errors of an unchanged one are dropped.
    fn ratcheted(
        &self,
        value: &Value,
        node: &Node,
        correlated: Option<Correlated<'_>>,
        is_root: bool,
        at: &Path<'_>,
        outcome: &mut ValueErrors,
    ) {
        let Some(old) = correlated else {
            return self.value(value, node, None, is_root, at, outcome);
        };
        let mut found = ValueErrors::default();
        self.value(value, node, correlated, is_root, at, &mut found);
        if !found.is_valid() && old.is_unchanged() {
            outcome.matches += found.matches;
        } else {
            outcome.merge(found);
        }
    }

    fn fail(
        &self,
        kind: ErrorKind,
        at: &Path<'_>,
        shown: Shown<'_>,
        message: String,
        outcome: &mut ValueErrors,
    ) {
        let value = match shown {
            Shown::Value(value) => Some(show(value)),
            Shown::Text(text) => Some(show_str(text)),
            Shown::None => None,
        };
        let detail = if value.is_some() { message.clone() } else { String::new() };
        outcome.add(message, FieldError { kind, field: self.field(at), value, detail });
    }

    /// Adds an error at the base path.
    fn fail_whole(&self, message: String, outcome: &mut ValueErrors) {
        let error = FieldError::invalid_str(self.base, "", message.clone());
        outcome.add(message, FieldError { field: self.field(&Path::ROOT), ..error });
    }

    fn field(&self, at: &Path<'_>) -> String {
        let (name, base) = (at.to_string(), self.base.to_string());
        match (name.trim_start_matches('.'), base.as_str()) {
            ("", "") => super::ROOT_FIELD.to_owned(),
            ("", _) => base,
            (name, "") => name.to_owned(),
            (name, base) => format!("{base}.{name}"),
        }
    }

    fn invalid(&self, at: &Path<'_>, value: &Value, what: &str, outcome: &mut ValueErrors) {
        self.fail(ErrorKind::Invalid, at, Shown::Value(value), format!("{at} in body {what}"), outcome);
    }

    fn value(
        &self,
        value: &Value,
        node: &Node,
        correlated: Option<Correlated<'_>>,
        is_root: bool,
        at: &Path<'_>,
        outcome: &mut ValueErrors,
    ) {
        let checks = node.checks();
        let types = self.types(node);
        if value.is_null() {
            self.type_of(value, node, types, at, outcome);
            return self.enumeration(value, checks, at, outcome);
        }
        if !types.is_empty() || !self.format(node).is_empty() {
            self.type_of(value, node, types, at, outcome);
            outcome.matches += 1;
        }
        self.junctors(value, checks, correlated, is_root, at, outcome);
        outcome.matches += 2;
        match value {
            Value::String(text) => self.text(text, value, node, at, outcome),
            Value::Number(_) => {
                self.number(value, node, at, outcome);
                outcome.matches += 2;
            }
            Value::Array(items) => {
                self.list(items, node, correlated, at, outcome);
                outcome.matches += 2;
            }
            _ => {}
        }
        self.enumeration(value, checks, at, outcome);
        outcome.matches += 1;
        if let Value::Object(fields) = value {
            self.object(fields, node, correlated, is_root, at, outcome);
            outcome.matches += 1;
        }
        outcome.matches += 1;
    }

    /// Accepted types.
    fn types(&self, node: &Node) -> &'static [NodeType] {
        match node.kind {
            _ if node.int_or_string && !self.is_default => &[NodeType::Integer, NodeType::String],
            NodeType::Any => &[],
            NodeType::Object => &[NodeType::Object],
            NodeType::Array => &[NodeType::Array],
            NodeType::String => &[NodeType::String],
            NodeType::Integer => &[NodeType::Integer],
            NodeType::Number => &[NodeType::Number],
            NodeType::Boolean => &[NodeType::Boolean],
        }
    }

    fn format<'n>(&self, node: &'n Node) -> &'n str {
        let checks = node.checks();
        let format = checks.format.as_deref().unwrap_or("");
        if checks.format_is_known || self.is_default { format } else { "" }
    }

    fn type_of(
        &self,
        value: &Value,
        node: &Node,
        types: &[NodeType],
        at: &Path<'_>,
        outcome: &mut ValueErrors,
    ) {
        let format = self.format(node);
        let accepts = |kind: NodeType| types.contains(&kind);
        let is_numeric = accepts(NodeType::Integer) || accepts(NodeType::Number);
        let (found, name) = match value {
            Value::Null => (None, "null"),
            Value::Bool(_) => (Some(NodeType::Boolean), "boolean"),
            Value::String(_) => (Some(NodeType::String), "string"),
            Value::Number(number) if number.is_i64() => (Some(NodeType::Integer), "integer"),
            Value::Number(_) => (Some(NodeType::Number), "number"),
            Value::Array(_) => (Some(NodeType::Array), "array"),
            Value::Object(_) => (Some(NodeType::Object), "object"),
        };
        let fits = match found {
            None => node.nullable || types.is_empty(),
            // A format determines the type of strings.
            Some(NodeType::String | NodeType::Array) if !format.is_empty() && !is_numeric => true,
            Some(NodeType::Integer) => is_numeric,
            Some(NodeType::Number) => {
                accepts(NodeType::Number) || accepts(NodeType::Integer) && numbers::is_whole(value)
            }
            Some(found) => accepts(found),
        };
        if fits {
            outcome.matches += 1;
            return;
        }
        let (wanted, found) = match name {
            "integer" if !matches!(format, "" | "int64") => (format.to_owned(), "int64"),
            "number" if !format.is_empty() => (format.to_owned(), "float64"),
            "boolean" | "object" if !format.is_empty() => (format.to_owned(), ""),
            name => (types.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(","), name),
        };
        let message = format!("{at} in body must be of type {wanted}: {found:?}");
        self.fail(ErrorKind::TypeInvalid, at, Shown::Text(found), message, outcome);
    }

    fn junctors(
        &self,
        value: &Value,
        checks: &Checks,
        correlated: Option<Correlated<'_>>,
        is_root: bool,
        at: &Path<'_>,
        outcome: &mut ValueErrors,
    ) {
        let outcome_of = |node: &Node| {
            let mut outcome = ValueErrors::default();
            self.value(value, node, correlated, is_root, at, &mut outcome);
            outcome
        };
        let better = |best: Option<ValueErrors>, next: ValueErrors| match best {
            Some(best) if best.matches >= next.matches => Some(best),
            _ => Some(next),
        };
        if !checks.any_of.is_empty() {
            let (mut best, mut valid) = (None, None);
            for node in &checks.any_of {
                let found = outcome_of(node);
                if found.is_valid() {
                    valid = Some(found);
                    break;
                }
                best = better(best, found);
            }
            if valid.is_none() {
                let name = show_str(&at.to_string());
                self.fail_whole(format!("{name} must validate at least one schema (anyOf)"), outcome);
            }
            valid.or(best).into_iter().for_each(|found| outcome.merge(found));
        }
        if !checks.one_of.is_empty() {
            let (mut best, mut first, mut valid) = (None, None, 0);
            for node in &checks.one_of {
                let found = outcome_of(node);
                if found.is_valid() {
                    valid += 1;
                    first = first.or(Some(found));
                } else if valid == 0 {
                    best = better(best, found);
                }
            }
            if valid == 1 {
                first.into_iter().for_each(|found| outcome.merge(found));
            } else {
                let count = match valid {
                    0 => "Found none valid".to_owned(),
                    several => format!("Found {several} valid alternatives"),
                };
                let name = show_str(&at.to_string());
                let message = format!("{name} must validate one and only one schema (oneOf). {count}");
                self.fail_whole(message, outcome);
                best.filter(|_| valid == 0).into_iter().for_each(|found| outcome.merge(found));
            }
        }
        if !checks.all_of.is_empty() {
            let mut valid = 0;
            for node in &checks.all_of {
                let found = outcome_of(node);
                valid += usize::from(found.is_valid());
                outcome.merge(found);
            }
            if valid != checks.all_of.len() {
                let name = show_str(&at.to_string());
                let none = if valid == 0 { ". None validated" } else { "" };
                self.fail_whole(format!("{name} must validate all the schemas (allOf){none}"), outcome);
            }
        }
        if checks.not.as_ref().is_some_and(|not| outcome_of(not).is_valid()) {
            let name = show_str(&at.to_string());
            self.fail_whole(format!("{name} must not validate the schema (not)"), outcome);
        }
    }

    fn text(&self, text: &str, value: &Value, node: &Node, at: &Path<'_>, outcome: &mut ValueErrors) {
        let Some(checks) = &node.checks else {
            outcome.matches += 1;
            return;
        };
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let matched = checks.pattern.as_ref().map(|pattern| (pattern, pattern.matches(text)));
        if let Some(most) = checks.max_length.filter(|most| length() > *most) {
            let message = format!("{at} in body should be at most {most} chars long");
            let most = usize::try_from(most).unwrap_or(0);
            let error = FieldError { field: self.field(at), ..FieldError::too_long(&Path::ROOT, most) };
            outcome.add(message, error);
        } else if let Some(least) = checks.min_length.filter(|least| length() < *least) {
            self.invalid(at, value, &format!("should be at least {least} chars long"), outcome);
        } else if let Some((pattern, Err(why))) = matched {
            let what = format!("should match '{}, but pattern is invalid: {why}'", pattern.text());
            self.invalid(at, value, &what, outcome);
        } else if let Some((pattern, Ok(false))) = matched {
            self.invalid(at, value, &format!("should match '{}'", pattern.text()), outcome);
        }
        outcome.matches += 1;
        let format = self.format(node);
        match formats::is_of(format, text) {
            None => {}
            Some(true) => outcome.matches += 1,
            Some(false) => {
                let message = format!("{at} in body must be of type {format}: {}", show_str(text));
                self.fail(ErrorKind::TypeInvalid, at, Shown::Value(value), message, outcome);
                outcome.matches += 1;
            }
        }
    }

    fn list(
        &self,
        items: &[Value],
        node: &Node,
        correlated: Option<Correlated<'_>>,
        at: &Path<'_>,
        outcome: &mut ValueErrors,
    ) {
        if let Some(of) = &node.items {
            let old = correlated.map(|correlated| (correlated, correlated.old_items()));
            let new = correlated.and_then(|correlated| correlated.new.as_array());
            for (index, item) in items.iter().enumerate() {
                let new = new.and_then(|new| new.get(index));
                let correlated = old.as_ref().zip(new).and_then(|((list, old), new)| list.item(old, new));
                self.ratcheted(item, of, correlated, false, &at.index(index), outcome);
            }
        }
        let checks = node.checks();
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(least) = checks.min_items.filter(|least| count < *least) {
            self.invalid(at, &count.into(), &format!("should have at least {least} items"), outcome);
        }
        if let Some(most) = checks.max_items.filter(|most| count > *most) {
            self.too_many(at, items.len(), most, "items", outcome);
        }
        if checks.unique_items {
            let mut seen = HashSet::new();
            if !items.iter().all(|item| seen.insert(item.to_string())) {
                let message = format!("{at} in body shouldn't contain duplicates");
                self.fail(ErrorKind::Invalid, at, Shown::Text(""), message, outcome);
            }
        }
    }

    fn too_many(&self, at: &Path<'_>, count: usize, most: i64, what: &str, outcome: &mut ValueErrors) {
        let message = format!("{at} in body should have at most {most} {what}");
        let most = usize::try_from(most).unwrap_or(0);
        let error = FieldError { field: self.field(at), ..FieldError::too_many(&Path::ROOT, count, most) };
        outcome.add(message, error);
    }

    fn enumeration(&self, value: &Value, checks: &Checks, at: &Path<'_>, outcome: &mut ValueErrors) {
        let allowed = &checks.enumeration;
        let same = |allowed: &Value| match (allowed.as_f64(), value.as_f64()) {
            (Some(allowed), Some(value)) => allowed == value,
            _ => allowed == value && !value.is_null(),
        };
        if allowed.is_empty() || allowed.iter().any(same) {
            return;
        }
        let shown = |allowed: &Value| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned);
        let texts: Vec<String> = allowed.iter().map(shown).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let error = match value {
            Value::String(text) => FieldError::not_supported_str(&Path::ROOT, text, &texts),
            other => FieldError::not_supported(&Path::ROOT, other, &texts),
        };
        let message = format!("{at} in body should be one of [{}]", texts.join(" "));
        outcome.add(message, FieldError { field: self.field(at), ..error });
    }

    fn object(
        &self,
        fields: &Map<String, Value>,
        node: &Node,
        correlated: Option<Correlated<'_>>,
        is_root: bool,
        at: &Path<'_>,
        outcome: &mut ValueErrors,
    ) {
        let checks = node.checks();
        let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
        if let Some(least) = checks.min_properties.filter(|least| count < *least) {
            self.invalid(at, &count.into(), &format!("should have at least {least} properties"), outcome);
        }
        if let Some(most) = checks.max_properties.filter(|most| count > *most) {
            self.too_many(at, fields.len(), most, "properties", outcome);
        }
        for (name, value) in fields {
            let ratchets = !(is_root && is_type_field(name));
            let old = correlated.filter(|_| ratchets).and_then(|correlated| correlated.field(name));
            if let Some(of) = node.property(name) {
                self.ratcheted(value, of, old, false, &at.child(name), outcome);
                continue;
            }
            match (&node.additional, node.additional_properties) {
                // The path of an additional field starts with a dot, even at the root.
                (Some(of), _) if at.is_root() => {
                    let name = format!(".{name}");
                    self.ratcheted(value, of, old, false, &Path::new(&name), outcome);
                }
                (Some(of), _) => self.ratcheted(value, of, old, false, &at.child(name), outcome),
                (None, Additional::Forbidden) => {
                    let message = format!("{at}.{name} in body is a forbidden property");
                    self.fail(ErrorKind::Invalid, at, Shown::Text(name), message, outcome);
                }
                (None, _) => {}
            }
        }
        for name in &checks.required {
            if !fields.contains_key(name.as_ref()) {
                let message = format!("{at}.{name} in body is required");
                self.fail(ErrorKind::Required, &at.child(name), Shown::None, message, outcome);
            }
        }
    }
}

/// True if a format applies to a type.
pub fn is_format(kind: &str, format: &str) -> bool {
    match kind {
        "" | "string" => formats::is_known(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}
