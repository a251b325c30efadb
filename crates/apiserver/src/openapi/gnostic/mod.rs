//! The protobuf form of OpenAPI documents requested by Kubernetes clients (gnostic's messages).
//!
//! An encoder over dynamic values, driven by message tables for each version.

mod v2;
mod v3;

pub use v2::DOCUMENT as V2;
pub use v3::DOCUMENT as V3;

use serde_json::Value;

/// A message of the protobuf form and the source of its fields in JSON.
pub enum Message {
    /// Members by key, and the field number for those beginning with `x-` (0: none).
    Struct { fields: &'static [(&'static str, u32, NodeType)], extensions: u32 },
    /// An object with free keys: the field number of the entries, each a name and a value.
    Map { entries: u32, value: &'static Message },
    /// A wrapper around one of several messages, chosen by the value.
    Choice(fn(&Value) -> (u32, &'static Message)),
    /// A list of strings.
    Texts,
}

/// The type of a field.
pub enum NodeType {
    Text,
    Texts,
    Flag,
    Integer,
    Number,
    /// Any value, as YAML.
    Yaml,
    Yamls,
    One(&'static Message),
    Many(&'static Message),
    /// A message that contains another one as its first field.
    Wrapped(&'static Message),
    /// A boolean or a schema.
    FlagOr(&'static Message),
    /// A string or list of strings in a separate message.
    WrappedTexts,
    /// A scalar in a separate message; the message is empty for an object or a list.
    Plain,
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn number(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

/// JSON is valid YAML.
fn yaml(out: &mut Vec<u8>, field_number: u32, value: &Value) {
    let mut any = Vec::new();
    bytes(&mut any, 2, format!("{value}\n").as_bytes());
    bytes(out, field_number, &any);
}

fn texts(out: &mut Vec<u8>, field_number: u32, value: &Value) {
    match value {
        Value::String(text) => bytes(out, field_number, text.as_bytes()),
        Value::Array(items) => {
            for text in items.iter().filter_map(Value::as_str) {
                bytes(out, field_number, text.as_bytes());
            }
        }
        _ => {}
    }
}

/// The content of a message.
fn encode(out: &mut Vec<u8>, message: &Message, value: &Value) {
    match (message, value) {
        (Message::Struct { .. } | Message::Map { .. }, Value::Object(members)) => {
            for (key, value) in members {
                member(out, message, key, value);
            }
        }
        (Message::Choice(choose), value) => {
            let (field_number, chosen) = choose(value);
            nested(out, field_number, chosen, value);
        }
        (Message::Texts, value) => texts(out, 1, value),
        _ => {}
    }
}

fn nested(out: &mut Vec<u8>, field_number: u32, message: &Message, value: &Value) {
    let mut content = Vec::new();
    encode(&mut content, message, value);
    bytes(out, field_number, &content);
}

/// One member of a message.
fn member(out: &mut Vec<u8>, message: &Message, key: &str, value: &Value) {
    match message {
        Message::Map { entries, value: of } => {
            let mut content = Vec::new();
            nested(&mut content, 2, of, value);
            entry(out, *entries, key, &content);
        }
        Message::Struct { fields, extensions } => match fields.iter().find(|(name, ..)| *name == key) {
            Some((_, field_number, kind)) => field(out, *field_number, kind, value),
            None if *extensions != 0 && key.starts_with("x-") => {
                let mut content = Vec::new();
                yaml(&mut content, 2, value);
                entry(out, *extensions, key, &content);
            }
            None => {}
        },
        Message::Choice(_) | Message::Texts => {}
    }
}

/// A name followed by an encoded value.
fn entry(out: &mut Vec<u8>, field_number: u32, name: &str, value: &[u8]) {
    let mut content = Vec::with_capacity(name.len() + value.len() + 8);
    bytes(&mut content, 1, name.as_bytes());
    content.extend_from_slice(value);
    bytes(out, field_number, &content);
}

fn field(out: &mut Vec<u8>, field_number: u32, kind: &NodeType, value: &Value) {
    let items = || value.as_array().map(Vec::as_slice).unwrap_or_default();
    match kind {
        NodeType::Text | NodeType::Texts => texts(out, field_number, value),
        NodeType::Flag => {
            if value == &Value::Bool(true) {
                number(out, field_number, 1);
            }
        }
        NodeType::Integer => {
            if let Some(value) = value.as_i64() {
                number(out, field_number, value.cast_unsigned());
            }
        }
        NodeType::Number => double(out, field_number, value),
        NodeType::Yaml => yaml(out, field_number, value),
        NodeType::Yamls => items().iter().for_each(|item| yaml(out, field_number, item)),
        NodeType::One(message) => nested(out, field_number, message, value),
        NodeType::Many(message) => items().iter().for_each(|item| nested(out, field_number, message, item)),
        NodeType::Wrapped(message) => {
            let mut content = Vec::new();
            match value {
                Value::Array(items) => items.iter().for_each(|item| nested(&mut content, 1, message, item)),
                value => nested(&mut content, 1, message, value),
            }
            bytes(out, field_number, &content);
        }
        NodeType::FlagOr(message) => {
            let mut content = Vec::new();
            match value {
                Value::Bool(flag) => number(&mut content, 2, u64::from(*flag)),
                value => nested(&mut content, 1, message, value),
            }
            bytes(out, field_number, &content);
        }
        NodeType::WrappedTexts => nested(out, field_number, &Message::Texts, value),
        NodeType::Plain => {
            let mut content = Vec::new();
            match value {
                Value::Number(_) => double(&mut content, 1, value),
                Value::Bool(flag) => number(&mut content, 2, u64::from(*flag)),
                Value::String(text) => bytes(&mut content, 3, text.as_bytes()),
                _ => {}
            }
            bytes(out, field_number, &content);
        }
    }
}

fn double(out: &mut Vec<u8>, field_number: u32, value: &Value) {
    if let Some(value) = value.as_f64() {
        varint(out, u64::from(field_number) << 3 | 1);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Writes a document member by member, like the JSON writer.
pub struct Encoder {
    /// Open messages, with the name and encoded content of each.
    open: Vec<(&'static Message, String, Vec<u8>)>,
}

impl Encoder {
    pub fn new(document: &'static Message) -> Self {
        Encoder { open: vec![(document, String::new(), Vec::new())] }
    }

    pub fn open(&mut self, key: &str) {
        let (parent, ..) = self.open.last().expect("an open message");
        let message = match parent {
            Message::Map { value, .. } => value,
            Message::Struct { fields, .. } => match fields.iter().find(|(name, ..)| *name == key) {
                Some((_, _, NodeType::One(message))) => *message,
                _ => &Message::Texts,
            },
            _ => &Message::Texts,
        };
        self.open.push((message, key.to_owned(), Vec::new()));
    }

    pub fn close(&mut self) {
        let (Some((_, key, content)), Some((parent, _, out))) = (self.open.pop(), self.open.last_mut())
        else {
            return;
        };
        if let Message::Struct { fields, .. } = parent
            && let Some((_, field_number, _)) = fields.iter().find(|(name, ..)| *name == key)
        {
            bytes(out, *field_number, &content);
        }
    }

    pub fn member(&mut self, key: &str, value: &Value) {
        if let Some((message, _, out)) = self.open.last_mut() {
            member(out, message, key, value);
        }
    }

    pub fn finish(mut self) -> Vec<u8> {
        while self.open.len() > 1 {
            self.close();
        }
        self.open.pop().map(|(_, _, out)| out).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `number: content` of the length-delimited fields of a message.
    fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn take(message: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let byte = message[0];
                *message = &message[1..];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        }
        let mut out = Vec::new();
        while !message.is_empty() {
            let tag = take(&mut message);
            assert_eq!(tag & 7, 2, "only length-delimited fields here");
            let length = take(&mut message) as usize;
            out.push((tag >> 3, message[..length].to_vec()));
            message = &message[length..];
        }
        out
    }

    #[test]
    fn version_2_schema_is_encoded() {
        let mut encoder = Encoder::new(&V2);
        encoder.member("swagger", &json!("2.0"));
        encoder.open("definitions");
        encoder.member("a.B", &json!({"type": "object", "x-kubernetes-map-type": "atomic"}));
        let document = fields(&encoder.finish());
        assert_eq!(document[0], (1, b"2.0".to_vec()));
        let definitions = fields(&document[1].1);
        assert_eq!((document[1].0, definitions[0].0), (9, 1));
        let named = fields(&definitions[0].1);
        assert_eq!(named[0], (1, b"a.B".to_vec()));
        let schema = fields(&named[1].1);
        assert_eq!(schema[0], (22, vec![0x0a, 6, b'o', b'b', b'j', b'e', b'c', b't']));
        assert_eq!(schema[1].0, 31);
        assert!(schema[1].1.ends_with(b"\"atomic\"\n"));
    }

    #[test]
    fn version_3_reference_is_encoded() {
        let mut encoder = Encoder::new(&V3);
        encoder.open("components");
        encoder.open("schemas");
        encoder.member("a.B", &json!({"properties": {"c": {"$ref": "#/x"}}}));
        let document = fields(&encoder.finish());
        let schemas = fields(&fields(&document[0].1)[0].1);
        let named = fields(&schemas[0].1);
        // SchemaOrReference → Schema → Properties → NamedSchemaOrReference → SchemaOrReference → Reference
        let schema = &fields(&named[1].1)[0].1;
        let properties = &fields(schema)[0];
        assert_eq!(properties.0, 31);
        let property = fields(&fields(&properties.1)[0].1);
        let reference = fields(&property[1].1);
        assert_eq!(reference[0].0, 2);
        assert_eq!(fields(&reference[0].1)[0], (1, b"#/x".to_vec()));
    }
}
