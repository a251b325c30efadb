//! Messages to values, equal to decoding the same object from JSON.

use super::{BYTES, FIXED32, FIXED64, GROUP_END, GROUP_START, ProtobufError, VARINT};
use crate::codec::budget::{Budget, MAP_BYTES, VALUE_BYTES};
use crate::codec::typed::{add_absent, keep, zero};
use crate::codec::{MAX_DEPTH, leaf, time};
use crate::schema::{Field, Node, SchemaRef, Shape, Union, Wire};
use serde_json::{Map, Value};
use std::cell::Cell;

type Read<T> = Result<T, ProtobufError>;

/// Decodes an object's message; its kind is the envelope's.
pub fn decode_object(bytes: &[u8], schema: SchemaRef<'_>) -> Read<Value> {
    let budget = Cell::new(Budget::of_compact(bytes.len()));
    message(bytes, schema, Depth { level: 0, budget: &budget })
}

/// Nesting depth of a message, and the memory budget shared by all of them.
#[derive(Clone, Copy)]
struct Depth<'b> {
    level: usize,
    budget: &'b Cell<Budget>,
}

impl Depth<'_> {
    fn below(self) -> Self {
        Self { level: self.level + 1, ..self }
    }

    fn spend(self, bytes: usize) -> Read<()> {
        let mut budget = self.budget.get();
        budget.spend(bytes)?;
        self.budget.set(budget);
        Ok(())
    }
}

/// Splits a message into fields.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    /// The type, for errors.
    message: &'a str,
}

/// Wire value after a tag.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    pub(super) fn of(bytes: &'a [u8], message: &'a str) -> Self {
        Self { rest: bytes, message }
    }

    fn varint(&mut self) -> Read<u64> {
        let mut value = 0u64;
        for (index, byte) in self.rest.iter().enumerate() {
            if index == 10 || (index == 9 && *byte > 1) {
                return Err(ProtobufError::Overflow);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(ProtobufError::Truncated)
    }

    fn take(&mut self, count: u64) -> Read<&'a [u8]> {
        let count = usize::try_from(count).map_err(|_| ProtobufError::Truncated)?;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(ProtobufError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next field with its number; groups and 32-bit numbers, which the API does not use, are skipped.
    pub(super) fn next(&mut self) -> Read<Option<(u32, Payload<'a>)>> {
        let mut groups = 0usize;
        while !self.rest.is_empty() {
            let tag = self.varint()?;
            let wire = (tag & 7) as u8;
            let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Overflow)?;
            if wire == GROUP_END && groups == 0 {
                return Err(ProtobufError::GroupEnd(self.message.to_owned()));
            }
            if number == 0 {
                return Err(ProtobufError::Tag { message: self.message.to_owned(), wire });
            }
            let payload = match wire {
                VARINT => Some(Payload::Varint(self.varint()?)),
                FIXED64 => {
                    let bytes = self.take(8)?;
                    Some(Payload::Fixed64(bytes.try_into().map_or(0, u64::from_le_bytes)))
                }
                BYTES => {
                    let length = self.varint()?;
                    Some(Payload::Bytes(self.take(length)?))
                }
                FIXED32 => {
                    self.take(4)?;
                    None
                }
                GROUP_START => {
                    groups += 1;
                    None
                }
                GROUP_END => {
                    groups -= 1;
                    None
                }
                _ => return Err(ProtobufError::IllegalWireType(wire)),
            };
            if let Some(payload) = payload.filter(|_| groups == 0) {
                return Ok(Some((number, payload)));
            }
        }
        if groups > 0 { Err(ProtobufError::Truncated) } else { Ok(None) }
    }
}

impl<'a> Payload<'a> {
    fn wire(self) -> u8 {
        match self {
            Payload::Varint(_) => VARINT,
            Payload::Fixed64(_) => FIXED64,
            Payload::Bytes(_) => BYTES,
        }
    }

    pub(super) fn bytes(self, field: &str) -> Read<&'a [u8]> {
        match self {
            Payload::Bytes(bytes) => Ok(bytes),
            other => Err(ProtobufError::WireType { wire: other.wire(), field: field.to_owned() }),
        }
    }

    fn integer(self, field: &str) -> Read<i64> {
        match self {
            Payload::Varint(value) => Ok(value.cast_signed()),
            other => Err(ProtobufError::WireType { wire: other.wire(), field: field.to_owned() }),
        }
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn message(bytes: &[u8], schema: SchemaRef<'_>, depth: Depth<'_>) -> Read<Value> {
    depth.spend(MAP_BYTES)?;
    let mut map = Map::new();
    fields_into(&mut map, bytes, schema, depth)?;
    add_absent(&mut map, schema);
    Ok(Value::Object(map))
}

fn number_of(node: &Node, wire: Wire) -> u32 {
    match wire {
        Wire::Field(index) => node.fields[usize::from(index)].proto.number,
        Wire::Nested(index) => node.nested[usize::from(index)].number,
    }
}

/// Reads a message's fields into the map of the struct they belong to, or are inlined into.
fn fields_into(
    map: &mut Map<String, Value>,
    bytes: &[u8],
    schema: SchemaRef<'_>,
    depth: Depth<'_>,
) -> Read<()> {
    if depth.level > MAX_DEPTH {
        return Err(ProtobufError::Depth);
    }
    let node = schema.node();
    let mut fields = Fields::of(bytes, node.name.rsplit('.').next().unwrap_or(""));
    // Writers sort by number, so the next field usually follows the last.
    let mut next = 0;
    while let Some((number, payload)) = fields.next()? {
        if node.wire.get(next).is_none_or(|wire| number_of(node, *wire) != number) {
            match node.wire.binary_search_by_key(&number, |wire| number_of(node, *wire)) {
                Ok(found) => next = found,
                Err(_) => continue,
            }
        }
        match node.wire[next] {
            Wire::Nested(index) => {
                let nested = schema.schema.at(node.nested[usize::from(index)].node);
                fields_into(map, payload.bytes("embedded message")?, nested, depth.below())?;
            }
            Wire::Field(index) => {
                let field = &node.fields[usize::from(index)];
                one_field(map, field, payload, schema.of_field(field), depth)?;
                let repeats = matches!(schema.of_field(field).shape(), Shape::List | Shape::Map);
                next += usize::from(!repeats);
                continue;
            }
        }
        next += 1;
    }
    Ok(())
}

fn one_field(
    map: &mut Map<String, Value>,
    field: &Field,
    payload: Payload<'_>,
    schema: SchemaRef<'_>,
    depth: Depth<'_>,
) -> Read<()> {
    let node = schema.node();
    match (node.shape, schema.element()) {
        (Shape::List, Some(element)) if !node.wrapped => {
            let entry = map.entry(field.name.as_ref()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(items) = entry {
                push_items(items, field, payload, element, depth)?;
            }
        }
        (Shape::Map, Some(element)) => {
            let entry = map.entry(field.name.as_ref()).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(entries) = entry {
                let (key, value) = map_entry(payload.bytes(&field.name)?, element, depth)?;
                entries.insert(key, value);
            }
        }
        _ => {
            let mut value = single(payload, schema, &field.name, depth)?;
            if keep(field, schema, &mut value) {
                map.insert(field.name.as_ref().to_owned(), value);
            }
        }
    }
    Ok(())
}

/// One item, or several packed into one field.
fn push_items(
    items: &mut Vec<Value>,
    field: &Field,
    payload: Payload<'_>,
    element: SchemaRef<'_>,
    depth: Depth<'_>,
) -> Read<()> {
    let packable = matches!(element.shape(), Shape::Int32 | Shape::Int64 | Shape::Boolean);
    if let (true, Payload::Bytes(bytes)) = (packable, payload) {
        let mut packed = Fields::of(bytes, &field.name);
        while !packed.rest.is_empty() {
            let varint = Payload::Varint(packed.varint()?);
            items.push(single(varint, element, &field.name, depth)?);
        }
        return Ok(());
    }
    let value = single(payload, element, &field.name, depth)?;
    items.push(if value.is_null() { zero(element) } else { value });
    Ok(())
}

fn map_entry(bytes: &[u8], element: SchemaRef<'_>, depth: Depth<'_>) -> Read<(String, Value)> {
    let mut key = String::new();
    let mut value = Value::Null;
    let mut fields = Fields::of(bytes, "entry");
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => key = text(payload.bytes("key")?),
            2 => value = single(payload, element, "value", depth)?,
            _ => {}
        }
    }
    Ok((key, if value.is_null() { zero(element) } else { value }))
}

/// A value that occurs once.
fn single(payload: Payload<'_>, schema: SchemaRef<'_>, name: &str, depth: Depth<'_>) -> Read<Value> {
    depth.spend(VALUE_BYTES)?;
    Ok(match schema.shape() {
        Shape::String => Value::String(text(payload.bytes(name)?)),
        #[expect(clippy::cast_possible_truncation, reason = "protobuf carries 32 bits in a longer varint")]
        Shape::Int32 => Value::from(payload.integer(name)? as i32),
        Shape::Int64 => Value::from(payload.integer(name)?),
        Shape::Boolean => Value::Bool(payload.integer(name)? != 0),
        Shape::Number => match payload {
            Payload::Fixed64(bits) => leaf::float(f64::from_bits(bits)),
            other => return Err(ProtobufError::WireType { wire: other.wire(), field: name.to_owned() }),
        },
        Shape::Bytes => Value::String(leaf::encode_base64(payload.bytes(name)?)),
        _ => body(payload.bytes(name)?, schema, depth.below())?,
    })
}

/// A message that is no list, map or plain scalar.
fn body(bytes: &[u8], schema: SchemaRef<'_>, depth: Depth<'_>) -> Read<Value> {
    if depth.level > MAX_DEPTH {
        return Err(ProtobufError::Depth);
    }
    match schema.shape() {
        Shape::Object => message(bytes, schema, depth),
        Shape::Time => instant(bytes, false),
        Shape::MicroTime => instant(bytes, true),
        Shape::Quantity => quantity(bytes),
        Shape::IntOrString => int_or_string(bytes),
        Shape::Duration => {
            let mut nanos = 0;
            each(bytes, "message", |number, payload| {
                if number == 1 {
                    nanos = payload.integer("duration")?;
                }
                Ok(())
            })?;
            Ok(Value::String(time::format_duration(nanos)))
        }
        Shape::List => {
            let mut items = Vec::new();
            let Some(element) = schema.element() else { return Ok(Value::Null) };
            each(bytes, "message", |number, payload| {
                if number == 1 {
                    let value = single(payload, element, "items", depth)?;
                    items.push(if value.is_null() { zero(element) } else { value });
                }
                Ok(())
            })?;
            Ok(if items.is_empty() { Value::Null } else { Value::Array(items) })
        }
        _ => match (schema.node().union, schema.element()) {
            (Some(kind), Some(element)) => union(bytes, kind, element, depth),
            _ => raw(bytes, schema, depth),
        },
    }
}

fn each<'a>(
    bytes: &'a [u8],
    message: &'a str,
    mut read: impl FnMut(u32, Payload<'a>) -> Read<()>,
) -> Read<()> {
    let mut fields = Fields::of(bytes, message);
    while let Some((number, payload)) = fields.next()? {
        read(number, payload)?;
    }
    Ok(())
}

fn instant(bytes: &[u8], micros: bool) -> Read<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    each(bytes, "Time", |number, payload| {
        match number {
            1 => seconds = payload.integer("seconds")?,
            2 => nanos = payload.integer("nanos")?,
            _ => {}
        }
        Ok(())
    })?;
    // Years outside of RFC 3339 would not survive JSON.
    let seconds = seconds.clamp(time::ZERO.seconds, 253_402_300_799);
    let nanos = if micros { u32::try_from(nanos.clamp(0, 999_999_999)).unwrap_or(0) } else { 0 };
    let instant = time::Instant { seconds, nanos };
    Ok(if instant == time::ZERO { Value::Null } else { Value::String(time::format(instant, micros)) })
}

fn quantity(bytes: &[u8]) -> Read<Value> {
    let mut value = Value::from("0");
    each(bytes, "Quantity", |number, payload| {
        if number == 1 {
            let text = text(payload.bytes("string")?);
            let canonical = crate::quantity::canonical(text.trim())?.into_owned();
            value = Value::String(canonical);
        }
        Ok(())
    })?;
    Ok(value)
}

fn int_or_string(bytes: &[u8]) -> Read<Value> {
    let (mut kind, mut integer, mut string) = (0, 0, String::new());
    each(bytes, "IntOrString", |number, payload| {
        match number {
            1 => kind = payload.integer("type")?,
            2 => integer = payload.integer("intVal")?,
            3 => string = text(payload.bytes("strVal")?),
            _ => {}
        }
        Ok(())
    })?;
    #[expect(clippy::cast_possible_truncation, reason = "protobuf carries 32 bits in a longer varint")]
    let integer = integer as i32;
    Ok(if kind == 1 { Value::String(string) } else { Value::from(integer) })
}

fn union(bytes: &[u8], union: Union, element: SchemaRef<'_>, depth: Depth<'_>) -> Read<Value> {
    let schema_number = if union == Union::SchemaOrBool { 2 } else { 1 };
    let mut schema = None;
    let mut items = Vec::new();
    let mut allows = false;
    each(bytes, "message", |number, payload| {
        match (number, union) {
            (number, _) if number == schema_number => {
                schema = Some(message(payload.bytes("schema")?, element, depth.below())?);
            }
            (1, Union::SchemaOrBool) => allows = payload.integer("allows")? != 0,
            (2, Union::SchemaOrArray) => {
                items.push(message(payload.bytes("jSONSchemas")?, element, depth.below())?)
            }
            (2, Union::SchemaOrStrings) => items.push(Value::String(text(payload.bytes("property")?))),
            _ => {}
        }
        Ok(())
    })?;
    Ok(match (union, items.is_empty(), schema) {
        (_, false, _) => Value::Array(items),
        (_, true, Some(schema)) => schema,
        (Union::SchemaOrBool, true, None) => Value::Bool(allows),
        _ => Value::Null,
    })
}

/// Embedded JSON, or an embedded object in an envelope of its own.
fn raw(bytes: &[u8], schema: SchemaRef<'_>, depth: Depth<'_>) -> Read<Value> {
    let mut raw: &[u8] = &[];
    each(bytes, "RawExtension", |number, payload| {
        if number == 1 {
            raw = payload.bytes("raw")?;
        }
        Ok(())
    })?;
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    if raw.starts_with(super::MAGIC) {
        let envelope = super::unwrap(raw)?;
        let (group, version) = crate::gvk::split_api_version(&envelope.api_version);
        let Some(of_kind) = schema.schema.kind(group, version, &envelope.kind) else {
            let (api_version, kind) = (envelope.api_version, envelope.kind);
            return Err(ProtobufError::UnknownKind { api_version, kind });
        };
        let mut value = message(envelope.raw, of_kind, depth.below())?;
        value["apiVersion"] = Value::String(envelope.api_version);
        value["kind"] = Value::String(envelope.kind);
        return Ok(value);
    }
    crate::codec::json::decode(raw)
        .map(|decoded| decoded.value)
        .map_err(|error| ProtobufError::Json(error.to_string()))
}
