//! D-Bus messages as needed for logind: calls with string arguments, replies, signals.

use std::io;

/// Message types.
pub const CALL: u8 = 1;
pub const ANSWER: u8 = 2;
pub const ERROR: u8 = 3;
pub const SIGNAL: u8 = 4;

const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;
/// Length of the fixed part of a header.
pub const FIXED: usize = 16;
/// Maximum accepted message size.
const MAX_LENGTH: usize = 1 << 20;

fn align(bytes: &mut Vec<u8>, to: usize) {
    while !bytes.len().is_multiple_of(to) {
        bytes.push(0);
    }
}

fn number(bytes: &mut Vec<u8>, number: u32) {
    align(bytes, 4);
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    number(bytes, u32::try_from(text.len()).unwrap_or(u32::MAX));
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
}

/// Destination of a call.
#[derive(Clone, Copy, Debug)]
pub struct Method<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
}

/// Encodes a call with string arguments.
#[must_use]
pub fn call(serial: u32, method: Method<'_>, arguments: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for argument in arguments {
        text(&mut body, argument);
    }
    let mut fields = Vec::new();
    let mut field = |code: u8, kind: u8, value: &str| {
        align(&mut fields, 8);
        fields.extend_from_slice(&[code, 1, kind, 0]);
        if kind == b'g' {
            fields.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
            fields.extend_from_slice(value.as_bytes());
            fields.push(0);
        } else {
            text(&mut fields, value);
        }
    };
    field(PATH, b'o', method.path);
    field(INTERFACE, b's', method.interface);
    field(MEMBER, b's', method.member);
    field(DESTINATION, b's', method.destination);
    if !arguments.is_empty() {
        field(SIGNATURE, b'g', &"s".repeat(arguments.len()));
    }
    let mut message = vec![b'l', CALL, 0, 1];
    number(&mut message, u32::try_from(body.len()).unwrap_or(u32::MAX));
    number(&mut message, serial);
    number(&mut message, u32::try_from(fields.len()).unwrap_or(u32::MAX));
    message.extend_from_slice(&fields);
    align(&mut message, 8);
    message.extend_from_slice(&body);
    message
}

/// A received message, reduced to the fields in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub kind: u8,
    pub member: String,
    pub reply_serial: u32,
    pub body: Vec<u8>,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed D-Bus message: {what}"))
}

/// Remaining length of a message, from its first bytes.
pub fn rest_length(fixed: &[u8; FIXED]) -> io::Result<usize> {
    if fixed[0] != b'l' || fixed[3] != 1 {
        return Err(malformed("unsupported byte order or version"));
    }
    let at =
        |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize;
    let (body, fields) = (at(4), at(12));
    if body > MAX_LENGTH || fields > MAX_LENGTH {
        return Err(malformed("message too long"));
    }
    Ok(fields.next_multiple_of(8) + body)
}

/// Parses a message from its first bytes and the rest.
pub fn parse(fixed: &[u8; FIXED], rest: &[u8]) -> io::Result<Message> {
    let length = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]) as usize;
    let fields = rest.get(..length).ok_or_else(|| malformed("truncated header"))?;
    let body = rest.get(length.next_multiple_of(8)..).ok_or_else(|| malformed("truncated message"))?;
    let mut message = Message { kind: fixed[1], body: body.to_vec(), ..Message::default() };
    let mut at = 0_usize;
    // Each field: its code, a one-letter signature, a value. The header is padded to 8 bytes.
    while at < fields.len() {
        let head = fields.get(at..at + 4).ok_or_else(|| malformed("truncated field"))?;
        let (code, kind) = (head[0], head[2]);
        if head[1] != 1 {
            return Err(malformed("unsupported field type"));
        }
        at += 4;
        match kind {
            b's' | b'o' => {
                let length = fields.get(at..at + 4).ok_or_else(|| malformed("truncated string"))?;
                let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
                let value =
                    fields.get(at + 4..at + 4 + length).ok_or_else(|| malformed("truncated string"))?;
                if code == MEMBER {
                    message.member = String::from_utf8_lossy(value).into_owned();
                }
                at += 4 + length + 1;
            }
            b'g' => {
                let length = usize::from(*fields.get(at).ok_or_else(|| malformed("truncated signature"))?);
                at += 1 + length + 1;
            }
            b'u' => {
                let value = fields.get(at..at + 4).ok_or_else(|| malformed("truncated number"))?;
                if code == REPLY_SERIAL {
                    message.reply_serial = u32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                }
                at += 4;
            }
            _ => return Err(malformed("unexpected field type")),
        }
        at = at.next_multiple_of(8);
    }
    Ok(message)
}

impl Message {
    /// First argument, if it is a number or boolean.
    #[must_use]
    pub fn first_number(&self) -> Option<u32> {
        self.body.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dbus_call_round_trips() {
        let method = Method { destination: "a.b", path: "/a/b", interface: "a.b.C", member: "Do" };
        let bytes = call(7, method, &["one", "two"]);
        let fixed: [u8; FIXED] = *bytes.first_chunk().expect("a header");
        assert_eq!(rest_length(&fixed).expect("a length"), bytes.len() - FIXED);
        let message = parse(&fixed, &bytes[FIXED..]).expect("a message");
        assert_eq!((message.kind, message.member.as_str()), (CALL, "Do"));
        assert_eq!(message.first_number(), Some(3), "the length of the first text");
        for cut in 0..bytes.len() - FIXED {
            // No truncation causes a panic.
            let _ = parse(&fixed, &bytes[FIXED..FIXED + cut]);
        }
    }
}
