//! The API's protobuf, table-driven: dynamic values to messages and back, byte-identical with Kubernetes.
//!
//! Fields are sorted by number; plain scalars and structs are always written, pointers only when set; times,
//! quantities and similar types have messages of their own; an object is sent in an envelope with its kind.

mod decode;
mod encode;
mod envelope;

pub use decode::decode_object;
pub use encode::{encode_object, list_message};
pub use envelope::{Envelope, MAGIC, envelope_around, item_length, unwrap, watch_frame, wrap, write_item};

/// Decoding error of protobuf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoEnvelope,
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WireType { wire: u8, field: String },
    #[error("proto: {message}: illegal tag 0 (wire type {wire})")]
    Tag { message: String, wire: u8 },
    #[error("proto: {0}: wiretype end group for non-group")]
    GroupEnd(String),
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
    #[error("proto: messages nest too deep")]
    Depth,
    #[error(transparent)]
    Budget(#[from] crate::codec::BudgetExceeded),
    #[error("proto: embedded JSON: {0}")]
    Json(String),
    #[error("proto: no kind {kind:?} is known in version {api_version:?}")]
    UnknownKind { api_version: String, kind: String },
    #[error("{0}")]
    Quantity(#[from] crate::quantity::QuantityError),
}

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED32: u8 = 5;
