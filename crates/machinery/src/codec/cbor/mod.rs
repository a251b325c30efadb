//! CBOR by Kubernetes' rules: self-described, strings as byte strings, sorted keys, only values that JSON can
//! represent.
//!
//! Hand-written: the rules allow a small subset of CBOR, to which a general library would have to be restricted.

mod decode;
mod encode;

pub use decode::decode;
pub use encode::{encode, watch_frame};

/// Self-describing tag at the start of every item.
pub const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Decoding error of CBOR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CborError {
    #[error("unexpected EOF")]
    Truncated,
    #[error("cbor: {count} bytes of extraneous data starting at index {index}")]
    Trailing { count: usize, index: usize },
    #[error("cbor: exceeded max nested level {0}")]
    Depth(usize),
    #[error("cbor: found duplicate map key \"{key}\" at map element index {index}")]
    DuplicateKey { key: String, index: usize },
    #[error("cbor: cannot use {0} as a map key")]
    Key(&'static str),
    #[error("cbor: invalid UTF-8 string")]
    Utf8,
    #[error("cbor: integer overflows 64 bits")]
    Integer,
    #[error("cbor: floating-point NaN and infinity are not allowed")]
    Float,
    #[error("cbor: bignums are not allowed")]
    Bignum,
    #[error("cbor: simple value {0} is not recognized")]
    Simple(u8),
    #[error(transparent)]
    Budget(#[from] crate::codec::BudgetExceeded),
    #[error("cbor: malformed item with initial byte {0:#04x}")]
    Malformed(u8),
}

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;
/// The bytes of a tagged string represent base64 text.
const LATER_BASE64: u64 = 22;
