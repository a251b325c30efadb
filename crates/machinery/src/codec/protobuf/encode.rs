//! Values to messages, written back to front so that every length is known when it is written.

use super::{BYTES, FIXED64, VARINT};
use crate::codec::{leaf, time};
use crate::schema::{SchemaRef, Shape, Union, Wire};
use serde_json::{Map, Value};

/// The message of an object: without its kind, which is in the envelope.
pub fn encode_object(value: &Value, schema: SchemaRef<'_>) -> Vec<u8> {
    let mut writer = Writer::with_capacity(1024);
    writer.message(value.as_object(), schema);
    writer.finish()
}

/// The message of a list from its metadata and the messages of its items, in order. `schema` is the list's type,
/// which has the numbers of both.
pub fn list_message<'a>(
    metadata: &Value,
    schema: SchemaRef<'_>,
    items: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut writer = Writer::with_capacity(4096);
    let number =
        |name: &str, otherwise| schema.field_decl(name).map_or(otherwise, |field| field.proto.number);
    let items_number = number("items", 2);
    for item in items.rev() {
        writer.bytes_field(items_number, item);
    }
    if let Some(of_metadata) = schema.field("metadata") {
        let end = writer.len();
        writer.message(metadata.as_object(), of_metadata);
        writer.close(number("metadata", 1), end);
    }
    writer.finish()
}

/// More fields than any struct has; further ones would take a slower lookup.
const SLOTS: usize = 64;

/// A buffer that grows towards its front.
pub(super) struct Writer {
    buffer: Vec<u8>,
    head: usize,
}

impl Writer {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { buffer: vec![0; capacity], head: capacity }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.buffer.drain(..self.head);
        self.buffer
    }

    pub(super) fn len(&self) -> usize {
        self.buffer.len() - self.head
    }

    #[inline]
    fn reserve(&mut self, count: usize) {
        if self.head < count {
            self.grow(count);
        }
    }

    #[cold]
    fn grow(&mut self, count: usize) {
        let used = self.len();
        let capacity = (self.buffer.len() * 2).max(used + count);
        let mut larger = vec![0; capacity];
        larger[capacity - used..].copy_from_slice(&self.buffer[self.head..]);
        self.buffer = larger;
        self.head = capacity - used;
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        let start = self.head - bytes.len();
        self.buffer[start..self.head].copy_from_slice(bytes);
        self.head = start;
    }

    pub(super) fn varint(&mut self, mut value: u64) {
        let mut scratch = [0; 10];
        let mut length = 0;
        loop {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            scratch[length] = if value == 0 { low } else { low | 0x80 };
            length += 1;
            if value == 0 {
                break;
            }
        }
        self.bytes(&scratch[..length]);
    }

    pub(super) fn tag(&mut self, number: u32, wire: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire));
    }

    /// Prepends length and tag to what was written since the writer had `end` bytes.
    pub(super) fn close(&mut self, number: u32, end: usize) {
        self.varint((self.len() - end) as u64);
        self.tag(number, BYTES);
    }

    pub(super) fn bytes_field(&mut self, number: u32, bytes: &[u8]) {
        self.bytes(bytes);
        self.varint(bytes.len() as u64);
        self.tag(number, BYTES);
    }

    pub(super) fn varint_field(&mut self, number: u32, value: u64) {
        self.varint(value);
        self.tag(number, VARINT);
    }

    fn integer_field(&mut self, number: u32, value: i64) {
        self.varint_field(number, value.cast_unsigned());
    }

    /// A struct's fields, or a struct of zero values when there is no map.
    fn message(&mut self, map: Option<&Map<String, Value>>, schema: SchemaRef<'_>) {
        let node = schema.node();
        let fields = &node.fields;
        let mut slots: [Option<&Value>; SLOTS] = [None; SLOTS];
        if let Some(map) = map {
            // Keys and fields are both sorted: one pass over both.
            let mut next = 0;
            for (key, value) in map {
                while next < fields.len() && fields[next].name.as_ref() < key.as_str() {
                    next += 1;
                }
                if next == fields.len().min(SLOTS) {
                    break;
                }
                if fields[next].name.as_ref() == key.as_str() {
                    slots[next] = Some(value).filter(|value| !value.is_null());
                    next += 1;
                }
            }
        }
        for wire in node.wire.iter().rev() {
            match *wire {
                Wire::Field(index) => {
                    let field = &fields[usize::from(index)];
                    let value = match slots.get(usize::from(index)) {
                        Some(slot) => *slot,
                        None => map.and_then(|map| map.get(field.name.as_ref())),
                    };
                    if value.is_some() || !field.pointer {
                        self.field(field.proto.number, value, schema.of_field(field));
                    }
                }
                Wire::Nested(index) => {
                    let nested = &node.nested[usize::from(index)];
                    let end = self.len();
                    self.message(map, schema.schema.at(nested.node));
                    self.close(nested.number, end);
                }
            }
        }
    }

    /// A field to be written: its value, or its type's zero value.
    fn field(&mut self, number: u32, value: Option<&Value>, schema: SchemaRef<'_>) {
        let node = schema.node();
        match node.shape {
            Shape::String => self.bytes_field(number, text(value).as_bytes()),
            Shape::Int32 | Shape::Int64 => self.integer_field(number, integer(value)),
            Shape::Boolean => {
                self.varint_field(number, u64::from(value.and_then(Value::as_bool).unwrap_or(false)))
            }
            Shape::Number => {
                let float = value.and_then(Value::as_f64).unwrap_or(0.0);
                self.bytes(&float.to_le_bytes());
                self.tag(number, FIXED64);
            }
            Shape::Bytes => {
                if let Some(Value::String(text)) = value {
                    self.bytes_field(number, &leaf::decode_base64(text.as_bytes()).unwrap_or_default());
                }
            }
            Shape::List if node.wrapped => {
                let end = self.len();
                self.list(1, value, schema);
                self.close(number, end);
            }
            Shape::List => self.list(number, value, schema),
            Shape::Map => self.map(number, value, schema),
            _ => {
                let end = self.len();
                self.body(value, schema);
                self.close(number, end);
            }
        }
    }

    /// The content of a message that is no list, map or plain scalar.
    fn body(&mut self, value: Option<&Value>, schema: SchemaRef<'_>) {
        match schema.shape() {
            Shape::Object => self.message(value.and_then(Value::as_object), schema),
            Shape::Quantity => self.bytes_field(1, value.and_then(Value::as_str).unwrap_or("0").as_bytes()),
            Shape::Time => self.instant(text(value), false),
            Shape::MicroTime => self.instant(text(value), true),
            Shape::Duration => {
                let nanos = time::parse_duration(text(value)).unwrap_or(0);
                self.integer_field(1, nanos);
            }
            Shape::IntOrString => {
                let string = value.and_then(Value::as_str);
                self.bytes_field(3, string.unwrap_or("").as_bytes());
                self.integer_field(2, if string.is_some() { 0 } else { integer(value) });
                self.varint_field(1, u64::from(string.is_some()));
            }
            _ => match (schema.node().union, schema.element()) {
                (Some(union), Some(element)) => self.union(value, union, element),
                _ => {
                    if let Some(value) = value {
                        self.bytes_field(1, &crate::codec::json::encode(value));
                    }
                }
            },
        }
    }

    fn instant(&mut self, text: &str, micros: bool) {
        let Ok(instant) = time::parse(text, micros) else {
            return;
        };
        if instant == time::ZERO {
            return;
        }
        let nanos = if micros { i64::from(instant.nanos / 1_000 * 1_000) } else { 0 };
        self.integer_field(2, nanos);
        self.integer_field(1, instant.seconds);
    }

    fn list(&mut self, number: u32, value: Option<&Value>, schema: SchemaRef<'_>) {
        let (Some(Value::Array(items)), Some(element)) = (value, schema.element()) else {
            return;
        };
        for item in items.iter().rev() {
            self.field(number, Some(item).filter(|item| !item.is_null()), element);
        }
    }

    fn map(&mut self, number: u32, value: Option<&Value>, schema: SchemaRef<'_>) {
        let (Some(Value::Object(map)), Some(element)) = (value, schema.element()) else {
            return;
        };
        for (key, value) in map.iter().rev() {
            let end = self.len();
            self.field(2, Some(value).filter(|value| !value.is_null()), element);
            self.bytes_field(1, key.as_bytes());
            self.close(number, end);
        }
    }

    fn union(&mut self, value: Option<&Value>, union: Union, element: SchemaRef<'_>) {
        let schema_number = if union == Union::SchemaOrBool { 2 } else { 1 };
        match value {
            Some(Value::Object(map)) => {
                let end = self.len();
                self.message(Some(map), element);
                self.close(schema_number, end);
            }
            Some(Value::Array(items)) => {
                for item in items.iter().rev() {
                    match item {
                        Value::String(text) => self.bytes_field(2, text.as_bytes()),
                        item => self.field(2, Some(item), element),
                    }
                }
            }
            _ => {}
        }
        if union == Union::SchemaOrBool {
            let allows = matches!(value, Some(Value::Object(_) | Value::Bool(true)));
            self.varint_field(1, u64::from(allows));
        }
    }
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or("")
}

fn integer(value: Option<&Value>) -> i64 {
    value.and_then(Value::as_i64).unwrap_or(0)
}
