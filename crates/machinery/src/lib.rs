//! API machinery shared by all kinds, without IO.
//!
//! Objects are dynamic [`serde_json::Value`]s; a [`schema::Schema`] describes their fields.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod apply;
pub mod codec;
pub mod field;
pub mod gvk;
pub mod jsonpath;
pub mod kubeconfig;
pub mod map;
pub mod meta;
pub mod names;
pub mod patch;
pub mod quantity;
pub mod regexp;
pub mod schema;
pub mod selector;
pub mod status;

pub use serde_json::{Map, Value};
