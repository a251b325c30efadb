//! What every API object needs, without IO.
//!
//! Objects are dynamic [`serde_json::Value`]s; a [`schema::Schema`] says what their fields mean.

pub mod apply;
pub mod codec;
pub mod field;
pub mod gvk;
pub mod jsonpath;
pub mod member;
pub mod meta;
pub mod names;
pub mod patch;
pub mod quantity;
pub mod regexp;
pub mod schema;
pub mod selector;
pub mod status;

pub use serde_json::{Map, Value};
