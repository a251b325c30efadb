//! JSON in one pass that detects duplicate and unknown fields, in document order, with Kubernetes' error texts.

use super::budget::{Budget, BudgetExceeded, MAP_BYTES, VALUE_BYTES};
use super::path::{Path, Step};
use super::typed::{Emptied, Findings, TypeError, add_absent, keep, zero, zero_entry};
use super::{json_writer, leaf};
use crate::schema::{SchemaRef, Shape};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Decoding error of JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The input is not valid JSON.
    #[error("{0}")]
    Syntax(String),
    /// JSON, but of another type.
    #[error(transparent)]
    Type(#[from] TypeError),
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
}

/// A value, and the errors of strict field validation (`duplicate field "spec.replicas"`), in document order.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub value: Value,
    pub strict: Vec<String>,
    /// Empty lists and maps that a type omits.
    pub emptied: Vec<Emptied>,
}

/// Decodes untyped JSON. Of duplicate keys the last one wins.
///
/// ```
/// use machinery::codec::json;
///
/// let decoded = json::decode(br#"{"kind": "Pod", "spec": {"nodeName": "n1"}}"#).expect("an object");
/// assert_eq!(decoded.value["spec"]["nodeName"], "n1");
/// assert_eq!(json::encode(&decoded.value), br#"{"kind":"Pod","spec":{"nodeName":"n1"}}"#);
/// ```
pub fn decode(bytes: &[u8]) -> Result<Decoded, JsonError> {
    read(bytes, None)
}

/// Decodes typed JSON; the value is normalized as by [`super::typed::normalize`].
pub fn decode_typed(bytes: &[u8], schema: SchemaRef<'_>) -> Result<Decoded, JsonError> {
    read(bytes, Some(schema))
}

/// Writes compact JSON with sorted keys.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    json_writer::write_value(&mut out, value);
    out
}

fn read(bytes: &[u8], schema: Option<SchemaRef<'_>>) -> Result<Decoded, JsonError> {
    // Nearly all text is valid; a check for that is faster than a search for invalid bytes.
    let checked = std::str::from_utf8(bytes);
    let broken = checked.err().and_then(|e| Some((e.valid_up_to(), *bytes.get(e.valid_up_to())?)));
    let input = checked.map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    let mut reader = Reader {
        input: &input,
        broken,
        at: 0,
        depth: 0,
        findings: Findings::default(),
        resumed: None,
        budget: Budget::of(bytes.len()),
        is_exceeded: false,
    };
    let document = reader.document(schema);
    if reader.is_exceeded {
        return Err(BudgetExceeded.into());
    }
    let mut value = document.map_err(JsonError::Syntax)?;
    if let (Value::Null, Some(schema)) = (&value, schema) {
        value = zero(schema);
    }
    let report = reader.findings.finish()?;
    Ok(Decoded { value, strict: report.strict, emptied: report.emptied })
}

/// True if `null` leaves a value of this shape unchanged.
fn ignores_null(shape: Shape) -> bool {
    matches!(
        shape,
        Shape::Object | Shape::String | Shape::Int32 | Shape::Int64 | Shape::Number | Shape::Boolean
    )
}

/// Contexts that do not allow a space: there, the end of input is reported as one.
const SPACE_IS_ERROR: [&str; 6] =
    ["in literal", "in numeric literal", "after decimal point", "in exponent", "in string escape", "in \\u"];

/// The error is the message of a syntax error: `invalid character 'x' looking for beginning of value`.
type Syntax<T> = Result<T, String>;

struct Reader<'i> {
    input: &'i str,
    /// Offset at which the input stops being UTF-8, and the first invalid byte.
    broken: Option<(usize, u8)>,
    at: usize,
    depth: usize,
    findings: Findings,
    /// Content of the struct or map to be read next, if its field occurred before.
    resumed: Option<Map<String, Value>>,
    budget: Budget,
    is_exceeded: bool,
}

impl<'i> Reader<'i> {
    fn document(&mut self, schema: Option<SchemaRef<'_>>) -> Syntax<Value> {
        let value = self.value(schema, &Path::ROOT)?;
        self.skip_space();
        match self.peek() {
            None => Ok(value),
            Some(_) => self.unexpected("after top-level value"),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.input.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn unexpected<T>(&self, context: &str) -> Syntax<T> {
        let byte = match (self.peek(), self.broken) {
            (_, Some((at, byte))) if at == self.at => byte,
            (Some(byte), _) => byte,
            // Go's reader treats the end of input as a space, which is an error only in some contexts.
            (None, _) if SPACE_IS_ERROR.iter().any(|refuses| context.starts_with(refuses)) => b' ',
            (None, _) => return Err("unexpected end of JSON input".to_owned()),
        };
        let shown = match byte {
            b'\'' => "\\'".to_owned(),
            b'"' => "\"".to_owned(),
            byte => {
                crate::field::show_str(char::from(byte).encode_utf8(&mut [0; 4])).trim_matches('"').to_owned()
            }
        };
        Err(format!("invalid character '{shown}' {context}"))
    }

    /// Accounts for memory before it is allocated; the reader stops when the budget is exceeded.
    fn spend(&mut self, bytes: usize) -> Syntax<()> {
        self.budget.spend(bytes).map_err(|exceeded| {
            self.is_exceeded = true;
            exceeded.to_string()
        })
    }

    fn value(&mut self, schema: Option<SchemaRef<'_>>, path: &Path<'_>) -> Syntax<Value> {
        self.spend(VALUE_BYTES)?;
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.nested(schema, path, "object", Self::object),
            Some(b'[') => self.nested(schema, path, "array", Self::array),
            Some(b'"') => {
                let text = self.string()?;
                Ok(match schema.filter(|s| s.shape() != Shape::Any) {
                    None => self.ignore_union(schema, path, Value::String(text.into_owned())),
                    Some(schema) => self.leaf(leaf::string(schema, text.into_owned()), path),
                })
            }
            Some(b't') => self.literal("true", schema, path, Some(true)),
            Some(b'f') => self.literal("false", schema, path, Some(false)),
            Some(b'n') => self.literal("null", schema, path, None),
            Some(b'-' | b'0'..=b'9') => {
                let text = self.number()?;
                Ok(match schema.filter(|s| s.shape() != Shape::Any) {
                    None => {
                        let value = self.leaf(leaf::any_number(text), path);
                        self.ignore_union(schema, path, value)
                    }
                    Some(schema) => self.leaf(leaf::number(schema, text), path),
                })
            }
            _ => self.unexpected("looking for beginning of value"),
        }
    }

    fn leaf(&mut self, read: Result<Value, leaf::Problem>, path: &Path<'_>) -> Value {
        match read {
            Ok(value) => value,
            Err(problem) => {
                self.findings.problem(problem, path);
                Value::Null
            }
        }
    }

    /// Applies the union's own rules to a scalar in place of a union.
    fn ignore_union(&mut self, schema: Option<SchemaRef<'_>>, path: &Path<'_>, mut value: Value) -> Value {
        if let Some(schema) = schema.filter(|schema| schema.node().union.is_some()) {
            super::typed::walk(&mut value, schema, path, &mut self.findings);
        }
        value
    }

    /// An object or array one level down, read by `inner` if its type matches.
    fn nested<'s>(
        &mut self,
        schema: Option<SchemaRef<'s>>,
        path: &Path<'_>,
        what: &str,
        inner: fn(&mut Self, Option<SchemaRef<'s>>, &Path<'_>) -> Syntax<Value>,
    ) -> Syntax<Value> {
        if self.depth >= super::MAX_DEPTH {
            return self.unexpected("exceeded max depth");
        }
        self.depth += 1;
        let value = match schema {
            Some(schema) if schema.shape() == Shape::Any => {
                // Named types retain their JSON unread, without strict errors; untyped values are checked.
                let opaque = usize::from(!schema.node().name.is_empty());
                self.findings.quiet += opaque;
                let value = inner(self, None, path)?;
                self.findings.quiet -= opaque;
                self.ignore_union(Some(schema), path, value)
            }
            Some(schema) => {
                let fits = match schema.shape() {
                    Shape::Object | Shape::Map => what == "object",
                    Shape::List => what == "array",
                    _ => false,
                };
                if fits {
                    inner(self, Some(schema), path)?
                } else if schema.shape() == Shape::Bytes && what == "array" {
                    self.findings.quiet += 1;
                    let octets = inner(self, None, path)?;
                    self.findings.quiet -= 1;
                    self.leaf(leaf::octets(octets.as_array().map_or(&[], Vec::as_slice)), path)
                } else {
                    self.findings.problem(leaf::container(schema, what), path);
                    self.discard(inner, path)?
                }
            }
            None => inner(self, None, path)?,
        };
        self.depth -= 1;
        Ok(value)
    }

    /// Continues with a syntax check only.
    fn discard<'s>(
        &mut self,
        inner: fn(&mut Self, Option<SchemaRef<'s>>, &Path<'_>) -> Syntax<Value>,
        path: &Path<'_>,
    ) -> Syntax<Value> {
        self.findings.quiet += 1;
        inner(self, None, path)?;
        self.findings.quiet -= 1;
        Ok(Value::Null)
    }

    fn object<'s>(&mut self, schema: Option<SchemaRef<'s>>, path: &Path<'_>) -> Syntax<Value> {
        self.at += 1;
        let resumed = self.resumed.take();
        let fresh = resumed.is_none();
        let mut map = resumed.unwrap_or_default();
        let mut seen = 0u128;
        self.skip_space();
        let is_empty = self.peek() == Some(b'}');
        if !is_empty || schema.is_some_and(|schema| !schema.node().always.is_empty()) {
            self.spend(MAP_BYTES)?;
        }
        if is_empty {
            self.at += 1;
        } else {
            loop {
                self.skip_space();
                if self.peek() != Some(b'"') {
                    return self.unexpected("looking for beginning of object key string");
                }
                let key = self.string()?;
                self.skip_space();
                if self.peek() != Some(b':') {
                    return self.unexpected("after object key");
                }
                self.at += 1;
                match schema {
                    Some(schema) if schema.shape() == Shape::Object => {
                        self.field(&mut map, &mut seen, fresh, key, schema, path)?;
                    }
                    _ => self.entry(&mut map, fresh, key, schema.and_then(SchemaRef::element), path)?,
                }
                self.skip_space();
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b'}') => {
                        self.at += 1;
                        break;
                    }
                    _ => return self.unexpected("after object key:value pair"),
                }
            }
        }
        if let Some(schema) = schema.filter(|schema| schema.shape() == Shape::Object) {
            add_absent(&mut map, schema);
        }
        Ok(Value::Object(map))
    }

    /// A key of a struct. `fresh`: all earlier keys belong to the current occurrence.
    fn field(
        &mut self,
        map: &mut Map<String, Value>,
        seen: &mut u128,
        fresh: bool,
        key: Cow<'i, str>,
        schema: SchemaRef<'_>,
        path: &Path<'_>,
    ) -> Syntax<()> {
        let fields = schema.fields();
        let Some(index) = schema.position(&key) else {
            self.findings.unknown(path, &key);
            self.findings.quiet += 1;
            let value = self.value(None, path)?;
            self.findings.quiet -= 1;
            if schema.preserves_unknown() {
                map.insert(key.into_owned(), value);
            }
            return Ok(());
        };
        let field = &fields[index];
        let bit = 1u128 << (index % 128);
        let again = *seen & bit != 0;
        *seen |= bit;
        let of_field = schema.of_field(field);
        if again {
            self.findings.duplicate(path, &key);
        }
        let held = again || (!fresh && map.contains_key(key.as_ref()));
        if held {
            self.resume(map, &key, of_field);
        }
        let is_null = held && self.peek() == Some(b'n');
        let mut value = self.value(Some(of_field), &path.then(Step::Field(&field.name, schema)))?;
        if is_null && !field.pointer && ignores_null(of_field.shape()) {
            return Ok(());
        }
        if keep(field, of_field, &mut value) {
            map.insert(key.into_owned(), value);
        } else {
            self.findings.left_out(&value, of_field, path, &key);
            map.remove(key.as_ref());
        }
        Ok(())
    }

    /// A repeated field: structs and maps are merged into the earlier value.
    fn resume(&mut self, map: &mut Map<String, Value>, key: &str, schema: SchemaRef<'_>) {
        self.skip_space();
        if self.peek() == Some(b'{') && matches!(schema.shape(), Shape::Object | Shape::Map) {
            self.resumed = match map.remove(key) {
                Some(Value::Object(held)) => Some(held),
                _ => None,
            };
        }
    }

    /// A key of a map or of an untyped object. `fresh`: all keys belong to the current occurrence.
    fn entry(
        &mut self,
        map: &mut Map<String, Value>,
        fresh: bool,
        key: Cow<'i, str>,
        element: Option<SchemaRef<'_>>,
        path: &Path<'_>,
    ) -> Syntax<()> {
        if fresh && map.contains_key(key.as_ref()) {
            self.findings.duplicate(path, &key);
        }
        let value = self.value(element, &path.then(Step::Key(&key)))?;
        let value = match (value, element) {
            (Value::Null, Some(element)) => {
                self.spend(MAP_BYTES)?;
                zero_entry(element)
            }
            (value, _) => value,
        };
        map.insert(key.into_owned(), value);
        Ok(())
    }

    fn array(&mut self, schema: Option<SchemaRef<'_>>, path: &Path<'_>) -> Syntax<Value> {
        self.at += 1;
        let element = schema.and_then(SchemaRef::element);
        let mut items = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            let value = self.value(element, &path.then(Step::Index(items.len())))?;
            items.push(match (value, element) {
                (Value::Null, Some(element)) => {
                    self.spend(MAP_BYTES)?;
                    zero(element)
                }
                (value, _) => value,
            });
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return self.unexpected("after array element"),
            }
        }
    }

    fn literal(
        &mut self,
        keyword: &str,
        schema: Option<SchemaRef<'_>>,
        path: &Path<'_>,
        value: Option<bool>,
    ) -> Syntax<Value> {
        for expected in keyword.bytes() {
            if self.peek() != Some(expected) {
                return self
                    .unexpected(&format!("in literal {keyword} (expecting '{}')", char::from(expected)));
            }
            self.at += 1;
        }
        Ok(match (schema.filter(|s| s.shape() != Shape::Any), value) {
            (_, None) => Value::Null,
            (None, Some(flag)) => self.ignore_union(schema, path, Value::Bool(flag)),
            (Some(schema), Some(flag)) => self.leaf(leaf::boolean(schema, flag), path),
        })
    }

    fn number(&mut self) -> Syntax<&'i str> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.skip_digits(),
            _ => return self.unexpected("in numeric literal"),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if !matches!(self.peek(), Some(b'0'..=b'9')) {
                return self.unexpected("after decimal point in numeric literal");
            }
            self.skip_digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if !matches!(self.peek(), Some(b'0'..=b'9')) {
                return self.unexpected("in exponent of numeric literal");
            }
            self.skip_digits();
        }
        Ok(&self.input[start..self.at])
    }

    fn skip_digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Syntax<Cow<'i, str>> {
        self.at += 1;
        let mut owned = String::new();
        loop {
            let start = self.at;
            self.at += json_writer::plain_length(&self.input.as_bytes()[start..]);
            let run = &self.input[start..self.at];
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    if owned.is_empty() {
                        return Ok(Cow::Borrowed(run));
                    }
                    owned.push_str(run);
                    return Ok(Cow::Owned(owned));
                }
                Some(b'\\') => {
                    owned.push_str(run);
                    self.at += 1;
                    owned.push(self.escape()?);
                }
                _ => return self.unexpected("in string literal"),
            }
        }
    }

    fn escape(&mut self) -> Syntax<char> {
        let escaped = match self.peek() {
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(byte @ (b'\\' | b'/' | b'"')) => char::from(byte),
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return self.unexpected("in string escape code"),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// After `\u`. A lone surrogate decodes to the replacement character.
    fn unicode_escape(&mut self) -> Syntax<char> {
        let first = self.hex4()?;
        if !(0xd800..0xdc00).contains(&first) {
            return Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        if self.input[self.at..].starts_with("\\u") {
            let after_first = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = after_first;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex4(&mut self) -> Syntax<u32> {
        let mut code = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|b| char::from(b).to_digit(16)) else {
                return self.unexpected("in \\u hexadecimal character escape");
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }
}
