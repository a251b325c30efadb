//! Converts a value to the form of its type: the effect of decoding it into Kubernetes' struct and encoding it again.
//!
//! Unknown fields are dropped (and reported), zero values are retained or dropped according to the field's
//! [`Presence`], scalars get their canonical form, and a mismatch is an error with Kubernetes' text.

use super::budget::{BudgetExceeded, MAX_FILLED};
use super::leaf::{self, Problem};
use super::path::{Path, Step};
use crate::map;
use crate::schema::{Field, Presence, SchemaRef, Shape, Union};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Mismatch of a value and its type, with Kubernetes' message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TypeError {
    pub message: String,
}

/// Findings of a conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Errors of strict field validation, in order: `unknown field "spec.foo"`.
    pub strict: Vec<String>,
    pub emptied: Vec<Emptied>,
}

/// An empty list or map that was omitted. It is equal to an absent one, but messages show the submitted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// `spec.template.metadata.labels`
    pub path: String,
    pub is_list: bool,
}

/// Converts a value to the form of its type, in place.
pub fn normalize(value: &mut Value, schema: SchemaRef<'_>) -> Result<Report, TypeError> {
    let mut findings = Findings::default();
    walk(value, schema, &Path::ROOT, &mut findings);
    if value.is_null() {
        *value = zero(schema);
    }
    findings.finish()
}

/// The same in stored form: Kubernetes stores its own kinds in protobuf, which has no empty lists and maps, so fields
/// that are always written are read back as `null`.
pub fn normalize_for_storage(value: &mut Value, schema: SchemaRef<'_>) -> Result<Report, TypeError> {
    let mut findings = Findings::default();
    Walk { findings: &mut findings, for_storage: true }.value(value, schema, &Path::ROOT);
    if value.is_null() {
        *value = zero(schema);
    }
    findings.finish()
}

/// The same for a part of a value, with shared findings.
pub(crate) fn walk(value: &mut Value, schema: SchemaRef<'_>, path: &Path<'_>, findings: &mut Findings) {
    Walk { findings, for_storage: false }.value(value, schema, path);
}

/// Errors of a conversion; shared by the walk over values and the JSON reader.
#[derive(Default)]
pub(crate) struct Findings {
    strict: Vec<String>,
    seen: HashSet<String>,
    /// Above zero inside values in which unknown and duplicate fields are not reported.
    pub(crate) quiet: usize,
    emptied: Vec<Emptied>,
    saved: Option<String>,
    fatal: Option<String>,
    /// Number of structs that consist of zero values only.
    filled: usize,
}

/// Limit of strict errors, as in Kubernetes; more are dropped.
const MAX_STRICT: usize = 100;

impl Findings {
    pub(crate) fn finish(self) -> Result<Report, TypeError> {
        match self.fatal.or(self.saved) {
            Some(message) => Err(TypeError { message }),
            None => Ok(Report { strict: self.strict, emptied: self.emptied }),
        }
    }

    pub(crate) fn unknown(&mut self, path: &Path<'_>, name: &str) {
        self.object_to("unknown field", path, name);
    }

    pub(crate) fn duplicate(&mut self, path: &Path<'_>, name: &str) {
        self.object_to("duplicate field", path, name);
    }

    /// Records an omitted value that was submitted.
    pub(crate) fn left_out(&mut self, value: &Value, schema: SchemaRef<'_>, path: &Path<'_>, name: &str) {
        let is_list = value.is_array();
        let is_container = is_list || value.is_object();
        let noted = matches!(schema.shape(), Shape::List | Shape::Map) && self.emptied.len() < MAX_STRICT;
        if is_container && noted {
            self.emptied.push(Emptied { path: path.dotted(name), is_list });
        }
    }

    fn object_to(&mut self, what: &str, path: &Path<'_>, name: &str) {
        if self.quiet > 0 || self.strict.len() >= MAX_STRICT {
            return;
        }
        let message = format!("{what} {}", crate::field::show_str(&path.dotted(name)));
        if self.seen.insert(message.clone()) {
            self.strict.push(message);
        }
    }

    pub(crate) fn problem(&mut self, problem: Problem, path: &Path<'_>) {
        let describe = |what: &str, of: &str| match path.go_field() {
            Some(field) => format!("json: cannot unmarshal {what} into Go struct field {field} of type {of}"),
            None => format!("json: cannot unmarshal {what} into Go value of type {of}"),
        };
        if self.fatal.is_some() {
            return;
        }
        match problem {
            Problem::Type { what, of } => {
                self.saved.get_or_insert_with(|| describe(&what, &of));
            }
            Problem::Text(message) => {
                self.saved.get_or_insert(message);
            }
            Problem::FatalType { what, of } => self.fatal = Some(describe(&what, of)),
            Problem::Fatal(message) => self.fatal = Some(message),
        }
    }

    /// Counts a struct that will be filled with zero values; returns false beyond the limit.
    fn fill(&mut self) -> bool {
        self.filled += 1;
        let fits = self.filled <= MAX_FILLED;
        if !fits && self.fatal.is_none() {
            self.fatal = Some(BudgetExceeded.to_string());
        }
        fits
    }

    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal.is_some()
    }
}

/// Zero value of a type.
pub fn zero(schema: SchemaRef<'_>) -> Value {
    let node = schema.node();
    match node.shape {
        Shape::Object => {
            let mut map = Map::new();
            add_absent(&mut map, schema);
            Value::Object(map)
        }
        Shape::String => Value::String(String::new()),
        Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrString => Value::from(0),
        Shape::Boolean => Value::Bool(false),
        Shape::Quantity => Value::from("0"),
        Shape::Duration => Value::from("0s"),
        Shape::Any if node.union == Some(Union::SchemaOrBool) => Value::Bool(false),
        Shape::Any | Shape::Map | Shape::List | Shape::Bytes | Shape::Time | Shape::MicroTime => Value::Null,
    }
}

/// Zero value of a map entry: for bytes, an empty string.
pub(crate) fn zero_entry(schema: SchemaRef<'_>) -> Value {
    match schema.shape() {
        Shape::Bytes => Value::String(String::new()),
        _ => zero(schema),
    }
}

/// Adds missing fields that are always written.
pub(crate) fn add_absent(map: &mut Map<String, Value>, schema: SchemaRef<'_>) {
    for index in &schema.node().always {
        let field = &schema.fields()[usize::from(*index)];
        if map::get(map, &field.name).is_none() {
            let value = if field.pointer { Value::Null } else { zero(schema.of_field(field)) };
            map.insert(field.name.as_ref().to_owned(), value);
        }
    }
}

/// Reports whether a field's value is written; replaces a `null` that stands for a zero value.
pub(crate) fn keep(field: &Field, schema: SchemaRef<'_>, value: &mut Value) -> bool {
    if value.is_null() {
        return match field.presence {
            Presence::Always => {
                if !field.pointer {
                    *value = zero(schema);
                }
                true
            }
            Presence::OmitZero | Presence::OmitAbsent => false,
        };
    }
    field.presence != Presence::OmitZero || !is_zero(value)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0) || number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Fast path for most values: text and flags are retained unmodified.
fn is_plain(shape: Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::String | Shape::IntOrString, Value::String(text)) => !text.is_empty(),
        (Shape::Boolean, Value::Bool(flag)) => *flag,
        _ => false,
    }
}

/// Turns an empty list or map into `null`.
fn null_if_empty(value: &mut Value, schema: SchemaRef<'_>) {
    let empty = match &*value {
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    if empty && matches!(schema.shape(), Shape::List | Shape::Map) {
        *value = Value::Null;
    }
}

struct Walk<'f> {
    findings: &'f mut Findings,
    /// Empty lists and maps that are always written become `null`.
    for_storage: bool,
}

impl Walk<'_> {
    fn value(&mut self, value: &mut Value, schema: SchemaRef<'_>, path: &Path<'_>) {
        let node = schema.node();
        match (node.shape, &mut *value) {
            (Shape::Any, _) => {
                if let Some(union) = node.union {
                    self.union(value, union, schema, path);
                }
            }
            (Shape::Duration, Value::Null) => {
                self.findings.problem(Problem::Fatal("time: invalid duration \"\"".to_owned()), path);
            }
            // Fast path: most values need no change.
            (_, Value::Null)
            | (Shape::String | Shape::IntOrString, Value::String(_))
            | (Shape::Boolean, Value::Bool(_)) => {}
            (Shape::Object, Value::Object(map)) => self.object(map, schema, path),
            (Shape::Map, Value::Object(map)) => {
                let Some(element) = schema.element() else { return };
                for (key, value) in map.iter_mut() {
                    self.value(value, element, &path.then(Step::Key(key)));
                    if value.is_null() {
                        *value = zero_entry(element);
                    }
                }
            }
            (Shape::List, Value::Array(items)) => {
                let Some(element) = schema.element() else { return };
                for (index, value) in items.iter_mut().enumerate() {
                    self.value(value, element, &path.then(Step::Index(index)));
                    if value.is_null() && (element.shape() != Shape::Object || self.findings.fill()) {
                        *value = zero(element);
                    }
                }
            }
            _ => self.scalar(value, schema, path),
        }
    }

    fn object(&mut self, map: &mut Map<String, Value>, schema: SchemaRef<'_>, path: &Path<'_>) {
        let mut dropped: Vec<String> = Vec::new();
        let mut always = 0;
        for (key, value) in map.iter_mut() {
            if self.findings.is_fatal() {
                break;
            }
            let retained = match schema.field_decl(key) {
                Some(field) => {
                    let of_field = schema.of_field(field);
                    if is_plain(of_field.shape(), value) {
                        always += usize::from(field.presence == Presence::Always);
                        continue;
                    }
                    let parent = path;
                    let path = path.then(Step::Field(&field.name, schema));
                    if !(field.pointer && value.is_null()) {
                        self.value(value, of_field, &path);
                    }
                    let retained = keep(field, of_field, value);
                    if !retained {
                        self.findings.left_out(value, of_field, parent, key);
                    }
                    if field.presence == Presence::Always {
                        always += 1;
                        if self.for_storage {
                            null_if_empty(value, of_field);
                        }
                    }
                    retained
                }
                None if schema.preserves_unknown() => true,
                None => {
                    self.findings.unknown(path, key);
                    false
                }
            };
            if !retained {
                dropped.push(key.clone());
            }
        }
        for key in dropped {
            map.remove(&key);
        }
        // Always-written fields are never dropped.
        if always < schema.node().always.len() && (!map.is_empty() || self.findings.fill()) {
            add_absent(map, schema);
        }
    }

    fn scalar(&mut self, value: &mut Value, schema: SchemaRef<'_>, path: &Path<'_>) {
        let read = match std::mem::take(value) {
            Value::Null => return,
            Value::Bool(flag) => leaf::boolean(schema, flag),
            Value::String(text) => leaf::string(schema, text),
            Value::Number(number) => match (schema.shape(), number.as_i64()) {
                (Shape::Int64, Some(_)) => Ok(Value::Number(number)),
                (Shape::Int32, Some(integer)) if i32::try_from(integer).is_ok() => Ok(Value::Number(number)),
                _ => leaf::number(schema, &leaf::number_text(&number)),
            },
            Value::Array(octets) if schema.shape() == Shape::Bytes => leaf::octets(&octets),
            Value::Array(_) => Err(leaf::container(schema, "array")),
            Value::Object(_) => Err(leaf::container(schema, "object")),
        };
        match read {
            Ok(read) => *value = read,
            Err(problem) => self.findings.problem(problem, path),
        }
    }

    /// A custom resource's schema with a simpler alternative.
    fn union(&mut self, value: &mut Value, union: Union, schema: SchemaRef<'_>, path: &Path<'_>) {
        let Some(element) = schema.element() else { return };
        self.findings.quiet += 1;
        // Such types are stored as JSON.
        let for_storage = std::mem::replace(&mut self.for_storage, false);
        match (union, &mut *value) {
            (_, Value::Object(_)) => self.value(value, element, path),
            (Union::SchemaOrArray, Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.value(item, element, &path.then(Step::Index(index)));
                    if item.is_null() {
                        *item = zero(element);
                    }
                }
            }
            (Union::SchemaOrStrings, Value::Array(items)) => {
                for item in items.iter_mut() {
                    match item {
                        Value::String(_) => {}
                        Value::Null => *item = Value::String(String::new()),
                        other => {
                            let what = kind_of(other).to_owned();
                            self.findings.problem(Problem::FatalType { what, of: "string" }, path);
                        }
                    }
                }
            }
            (Union::SchemaOrBool, Value::Bool(_)) => {}
            (Union::SchemaOrBool, _) => {
                self.findings.problem(Problem::Fatal("boolean or JSON schema expected".to_owned()), path);
            }
            _ => *value = Value::Null,
        }
        self.for_storage = for_storage;
        self.findings.quiet -= 1;
    }
}

/// Go's name of a JSON value in type errors.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Name of the Go type of a decoded value, for error texts.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
