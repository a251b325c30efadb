//! The built-in kinds: one file and one row each, pure functions over dynamic values.
//!
//! Facts of the schema (types, list types, defaults of fields, protobuf numbers) are in [`schema`]; all other rules
//! (defaults that depend on other fields, validation, update rules, table cells) are Rust in the kind's own file
//! under [`kinds`].

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod allocation;
pub mod autoscaling;
mod clock;
pub mod custom;
pub mod docs;
pub mod field_selectors;
pub mod kind;
pub mod kinds;
pub mod pod;
pub mod pod_spec;
pub mod resources;
pub mod rules;
pub mod runtime_config;
pub mod scale;
pub mod schema;
pub mod subresources;
pub mod tables;
pub mod validation;
pub mod value;
pub mod workload;

pub use kind::{Kind, MetadataCheck, ResourceNames, Scope, Text};
pub use rules::Rules;
