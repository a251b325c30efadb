//! The protobuf form of OpenAPI documents that clients of Kubernetes ask for (gnostic's messages).
//!
//! An encoder over dynamic values, driven by the tables of each version's messages.

mod v2;
mod v3;

pub use v2::DOCUMENT as V2;
pub use v3::DOCUMENT as V3;

use serde_json::Value;

/// A message of the protobuf form and where it takes its fields from in JSON.
pub enum Message {
    /// Members by key, and the number that takes those beginning with `x-` (0: none does).
    Struct { fields: &'static [(&'static str, u32, Kind)], extensions: u32 },
    /// An object with free keys: the number of the entries, each a name and a value.
    Map { entries: u32, value: &'static Message },
    /// A wrapper around one of several messages, chosen by a look at the value.
    Choice(fn(&Value) -> (u32, &'static Message)),
    /// A list of strings.
    Texts,
}

/// The type of a field.
pub enum Kind {
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
    /// A message that repeats another one as its first field.
    Wrapped(&'static Message),
    /// A boolean or a schema.
    FlagOr(&'static Message),
    /// A string or list of strings in a message of its own.
    WrappedTexts,
    /// A plain value in a message of its own; nothing but the message for an object or a list.
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

/// JSON is YAML, too.
fn yaml(out: &mut Vec<u8>, place: u32, value: &Value) {
    let mut any = Vec::new();
    bytes(&mut any, 2, format!("{value}\n").as_bytes());
    bytes(out, place, &any);
}

fn texts(out: &mut Vec<u8>, place: u32, value: &Value) {
    match value {
        Value::String(text) => bytes(out, place, text.as_bytes()),
        Value::Array(items) => {
            for text in items.iter().filter_map(Value::as_str) {
                bytes(out, place, text.as_bytes());
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
            let (place, chosen) = choose(value);
            nested(out, place, chosen, value);
        }
        (Message::Texts, value) => texts(out, 1, value),
        _ => {}
    }
}

fn nested(out: &mut Vec<u8>, place: u32, message: &Message, value: &Value) {
    let mut content = Vec::new();
    encode(&mut content, message, value);
    bytes(out, place, &content);
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
            Some((_, place, kind)) => field(out, *place, kind, value),
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

/// A name with an encoded value after it.
fn entry(out: &mut Vec<u8>, place: u32, name: &str, value: &[u8]) {
    let mut content = Vec::with_capacity(name.len() + value.len() + 8);
    bytes(&mut content, 1, name.as_bytes());
    content.extend_from_slice(value);
    bytes(out, place, &content);
}

fn field(out: &mut Vec<u8>, place: u32, kind: &Kind, value: &Value) {
    let items = || value.as_array().map(Vec::as_slice).unwrap_or_default();
    match kind {
        Kind::Text | Kind::Texts => texts(out, place, value),
        Kind::Flag => {
            if value == &Value::Bool(true) {
                number(out, place, 1);
            }
        }
        Kind::Integer => {
            if let Some(value) = value.as_i64() {
                number(out, place, value.cast_unsigned());
            }
        }
        Kind::Number => double(out, place, value),
        Kind::Yaml => yaml(out, place, value),
        Kind::Yamls => items().iter().for_each(|item| yaml(out, place, item)),
        Kind::One(message) => nested(out, place, message, value),
        Kind::Many(message) => items().iter().for_each(|item| nested(out, place, message, item)),
        Kind::Wrapped(message) => {
            let mut content = Vec::new();
            match value {
                Value::Array(items) => items.iter().for_each(|item| nested(&mut content, 1, message, item)),
                value => nested(&mut content, 1, message, value),
            }
            bytes(out, place, &content);
        }
        Kind::FlagOr(message) => {
            let mut content = Vec::new();
            match value {
                Value::Bool(flag) => number(&mut content, 2, u64::from(*flag)),
                value => nested(&mut content, 1, message, value),
            }
            bytes(out, place, &content);
        }
        Kind::WrappedTexts => nested(out, place, &Message::Texts, value),
        Kind::Plain => {
            let mut content = Vec::new();
            match value {
                Value::Number(_) => double(&mut content, 1, value),
                Value::Bool(flag) => number(&mut content, 2, u64::from(*flag)),
                Value::String(text) => bytes(&mut content, 3, text.as_bytes()),
                _ => {}
            }
            bytes(out, place, &content);
        }
    }
}

fn double(out: &mut Vec<u8>, place: u32, value: &Value) {
    if let Some(value) = value.as_f64() {
        varint(out, u64::from(place) << 3 | 1);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Writes a document member by member, like the JSON writer does.
pub struct Encoder {
    /// The messages that are open, with the name and encoded content of each.
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
                Some((_, _, Kind::One(message))) => *message,
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
            && let Some((_, place, _)) = fields.iter().find(|(name, ..)| *name == key)
        {
            bytes(out, *place, &content);
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
    fn a_schema_of_version_2() {
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
    fn a_reference_of_version_3() {
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
