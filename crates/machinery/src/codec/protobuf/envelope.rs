//! The envelope with an object's kind, and the frames of a watch.

use super::decode::{Fields, text};
use super::encode::Writer;
use super::{BYTES, ProtobufError};

/// Prefix of every enveloped object.
pub const MAGIC: &[u8] = b"k8s\0";

/// An object with its kind, not yet decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub api_version: String,
    pub kind: String,
    pub raw: &'a [u8],
    pub content_encoding: String,
    /// Empty for protobuf; else the content type of `raw`, for example `application/json`.
    pub content_type: String,
}

/// Wraps an object's message in its envelope.
pub fn wrap(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(message.len() + api_version.len() + kind.len() + 32);
    writer.bytes_field(4, &[]);
    writer.bytes_field(3, &[]);
    writer.bytes_field(2, message);
    let end = writer.len();
    writer.bytes_field(2, kind.as_bytes());
    writer.bytes_field(1, api_version.as_bytes());
    writer.close(1, end);
    writer.bytes(MAGIC);
    writer.finish()
}

/// Envelope bytes before and after a message of `length` bytes, for messages that are never in one piece.
pub fn envelope_around(api_version: &str, kind: &str, length: usize) -> (Vec<u8>, &'static [u8]) {
    let mut writer = Writer::with_capacity(api_version.len() + kind.len() + 32);
    writer.varint(length as u64);
    writer.tag(2, BYTES);
    let end = writer.len();
    writer.bytes_field(2, kind.as_bytes());
    writer.bytes_field(1, api_version.as_bytes());
    writer.close(1, end);
    writer.bytes(MAGIC);
    (writer.finish(), EMPTY_TAIL)
}

/// Content encoding and content type, both empty.
const EMPTY_TAIL: &[u8] = &[0x1a, 0, 0x22, 0];
/// The tag of a list's items: field 2 in every list.
const ITEM_TAG: u8 = 0x12;

/// Length of a list's item, with its tag and length prefix.
pub fn item_length(message: usize) -> usize {
    1 + varint_length(message) + message
}

/// Appends an item of a list.
pub fn write_item(out: &mut Vec<u8>, message: &[u8]) {
    out.push(ITEM_TAG);
    let mut length = message.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(message);
}

fn varint_length(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Splits an envelope into its parts.
pub fn unwrap(bytes: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let message = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoEnvelope)?;
    let mut envelope = Envelope {
        api_version: String::new(),
        kind: String::new(),
        raw: &[],
        content_encoding: String::new(),
        content_type: String::new(),
    };
    let mut fields = Fields::of(message, "Unknown");
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => {
                let mut fields = Fields::of(payload.bytes("TypeMeta")?, "TypeMeta");
                while let Some((number, payload)) = fields.next()? {
                    match number {
                        1 => envelope.api_version = text(payload.bytes("APIVersion")?),
                        2 => envelope.kind = text(payload.bytes("Kind")?),
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = payload.bytes("Raw")?,
            3 => envelope.content_encoding = text(payload.bytes("ContentEncoding")?),
            4 => envelope.content_type = text(payload.bytes("ContentType")?),
            _ => {}
        }
    }
    Ok(envelope)
}

/// One event of a watch stream with its length prefix; `object` is in its envelope.
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(object.len() + event.len() + 32);
    let end = writer.len();
    writer.bytes_field(1, object);
    writer.close(2, end);
    writer.bytes_field(1, event.as_bytes());
    let length = u32::try_from(writer.len()).unwrap_or(u32::MAX);
    writer.bytes(&length.to_be_bytes());
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_round_trips() {
        let bytes = wrap("apps/v1", "Deployment", b"xyz");
        let envelope = unwrap(&bytes).unwrap();
        assert_eq!((envelope.api_version.as_str(), envelope.kind.as_str()), ("apps/v1", "Deployment"));
        assert_eq!(envelope.raw, b"xyz");
        assert!(bytes.ends_with(&[0x1a, 0, 0x22, 0]));
        assert_eq!(unwrap(b"{}"), Err(ProtobufError::NoEnvelope));
    }

    #[test]
    fn list_in_chunks_has_identical_bytes() {
        let items: [&[u8]; 3] = [b"", b"ab", &[7; 200]];
        let mut message = Vec::new();
        items.iter().for_each(|item| write_item(&mut message, item));
        assert_eq!(message.len(), items.iter().map(|item| item_length(item.len())).sum::<usize>());
        let (head, tail) = envelope_around("v1", "PodList", message.len());
        assert_eq!([&head, message.as_slice(), tail].concat(), wrap("v1", "PodList", &message));
    }

    #[test]
    fn watch_frames_have_length_prefix() {
        let frame = watch_frame("ADDED", b"k8s\0");
        assert_eq!(frame, [&[0, 0, 0, 15, 10, 5][..], b"ADDED", &[18, 6, 10, 4], b"k8s\0"].concat());
    }
}
