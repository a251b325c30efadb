//! What a type makes of a value: the effect of reading it into Kubernetes' struct and writing it out again.
//!
//! Unknown fields go (and are reported), zero values stay or go as the field's [`Presence`] says, scalars get
//! their canonical form, and what does not fit its type is an error in Kubernetes' words.

use super::budget::{BudgetExceeded, MAX_FILLED};
use super::leaf::{self, Problem};
use super::path::{Path, Step};
use crate::member;
use crate::schema::{Field, Presence, SchemaRef, Shape, Union};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Why a value does not fit its type, in the words Kubernetes uses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TypeError {
    pub message: String,
}

/// What was found on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What strict field validation objects to, in order: `unknown field "spec.foo"`.
    pub strict: Vec<String>,
    pub emptied: Vec<Emptied>,
}

/// A list or map without entries that was left out. It is as good as absent, but messages show what was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// `spec.template.metadata.labels`
    pub path: String,
    pub is_list: bool,
}

/// Brings a value into the form of its type, in place.
pub fn normalize(value: &mut Value, schema: SchemaRef<'_>) -> Result<Report, TypeError> {
    let mut findings = Findings::default();
    walk(value, schema, &Path::ROOT, &mut findings);
    if value.is_null() {
        *value = zero(schema);
    }
    findings.finish()
}

/// The same, as storing leaves it: Kubernetes keeps its own kinds in protobuf, which knows no empty lists and maps, so
/// fields that are always written come back as `null`.
pub fn normalize_for_storage(value: &mut Value, schema: SchemaRef<'_>) -> Result<Report, TypeError> {
    let mut findings = Findings::default();
    Walk { findings: &mut findings, for_storage: true }.value(value, schema, &Path::ROOT);
    if value.is_null() {
        *value = zero(schema);
    }
    findings.finish()
}

/// The same for a part of a value, findings shared with whoever reads the whole.
pub(crate) fn walk(value: &mut Value, schema: SchemaRef<'_>, path: &Path<'_>, findings: &mut Findings) {
    Walk { findings, for_storage: false }.value(value, schema, path);
}

/// Errors on the way; shared by the walk over values and the JSON reader.
#[derive(Default)]
pub(crate) struct Findings {
    strict: Vec<String>,
    seen: HashSet<String>,
    /// Above zero inside values whose reader does not look for unknown or duplicate fields.
    pub(crate) quiet: usize,
    emptied: Vec<Emptied>,
    saved: Option<String>,
    fatal: Option<String>,
    /// Structs that consist of zero values only.
    filled: usize,
}

/// Strict errors beyond this many are dropped, as Kubernetes does.
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

    /// Notes what is left out though it was given.
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
        let message = format!("{what} {}", super::quote(&path.dotted(name)));
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

    /// Notes a struct that is about to be made of zero values; whether there may be one more.
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

/// The value of a type that nothing was said about.
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

/// The value of a map's key that nothing was said about: bytes are there, but none.
pub(crate) fn zero_entry(schema: SchemaRef<'_>) -> Value {
    match schema.shape() {
        Shape::Bytes => Value::String(String::new()),
        _ => zero(schema),
    }
}

/// Writes the fields that are always written and not there.
pub(crate) fn add_absent(map: &mut Map<String, Value>, schema: SchemaRef<'_>) {
    for index in &schema.node().always {
        let field = &schema.fields()[usize::from(*index)];
        if member::get(map, &field.name).is_none() {
            let value = if field.pointer { Value::Null } else { zero(schema.of_field(field)) };
            map.insert(field.name.as_ref().to_owned(), value);
        }
    }
}

/// Whether a field's value is written; a `null` that stands for a zero value becomes that.
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

/// What most values are: text and flags that are kept as they are.
fn is_plain(shape: Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::String | Shape::IntOrString, Value::String(text)) => !text.is_empty(),
        (Shape::Boolean, Value::Bool(flag)) => *flag,
        _ => false,
    }
}

/// Turns an empty list or map into `null`.
fn forget_empty(value: &mut Value, schema: SchemaRef<'_>) {
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
            // What most values are: there is nothing to do for them.
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
            let kept = match schema.field_decl(key) {
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
                    let kept = keep(field, of_field, value);
                    if !kept {
                        self.findings.left_out(value, of_field, parent, key);
                    }
                    if field.presence == Presence::Always {
                        always += 1;
                        if self.for_storage {
                            forget_empty(value, of_field);
                        }
                    }
                    kept
                }
                None if schema.preserves_unknown() => true,
                None => {
                    self.findings.unknown(path, key);
                    false
                }
            };
            if !kept {
                dropped.push(key.clone());
            }
        }
        for key in dropped {
            map.remove(&key);
        }
        // What is always written is never dropped.
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

    /// A custom resource's schema where something simpler may stand in its place.
    fn union(&mut self, value: &mut Value, union: Union, schema: SchemaRef<'_>, path: &Path<'_>) {
        let Some(element) = schema.element() else { return };
        self.findings.quiet += 1;
        // Such types are kept as JSON.
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

/// What Go calls a JSON value in type errors.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
