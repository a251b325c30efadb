//! JSON, YAML, CBOR and protobuf to and from dynamic values.
//!
//! A request body goes through [`json::decode_typed`] (or another decoder and then [`typed::normalize`]):
//! both have exactly the effect of Kubernetes' decoding into a struct and writing it out again.

pub mod budget;
pub mod cbor;
pub mod json;
mod leaf;
pub mod own;
mod path;
pub mod protobuf;
pub mod restore;
pub mod text;
pub mod time;
pub mod typed;
pub mod yaml;

pub use budget::BudgetExceeded;

/// Objects may nest this deep. What is accepted can be read again by any JSON reader.
pub const MAX_DEPTH: usize = 120;

/// A text in double quotes, escaped the way Go does.
pub(crate) fn quote(text: &str) -> String {
    crate::field::show_str(text)
}
