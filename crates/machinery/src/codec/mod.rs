//! JSON, YAML, CBOR and protobuf to and from dynamic values.
//!
//! A request body goes through [`json::decode_typed`] (or another decoder and then [`typed::normalize`]): both have
//! exactly the effect of Kubernetes' decoding into a struct and encoding it again.

pub mod budget;
pub mod cbor;
pub mod json;
pub mod json_writer;
mod leaf;
mod path;
pub mod protobuf;
pub mod restore;
pub mod stored_json;
pub mod time;
pub mod typed;
pub mod yaml;

pub use budget::BudgetExceeded;

/// Nesting limit of objects, within what any JSON reader accepts.
pub const MAX_DEPTH: usize = 120;
