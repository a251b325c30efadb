//! Common Expression Language (CEL) with Kubernetes' libraries: compiles expressions once and evaluates them on JSON.
//!
//! An [`Environment`] declares variables with their types; [`Environment::compile`] parses an expression, checks its
//! types and reports every error that needs no data, with Kubernetes' messages. A [`Program`] is evaluated on
//! [`Value`]s, which borrow JSON without converting it, within a cost limit. Policies, match conditions, claim
//! mappings and device selectors use this crate.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admission;
mod check;
mod cost;
pub mod device;
mod environment;
mod estimate;
mod evaluate;
mod functions;
mod macros;
pub mod openapi;
mod parse;
mod plan;
#[cfg(test)]
mod tests;
mod types;
mod typing;
mod unify;
mod value;

pub use environment::{CompileError, Environment, apply_configuration_type, composed_type, json_patch_type};
pub use estimate::{Estimate, Extent};
pub use evaluate::{Composition, Inputs, PER_CALL_LIMIT, Program};
pub use functions::authorizer::{
    Check, CheckTarget, Decision, Decisions, ResourceTarget, authorizer_type, resource_check_type,
};
pub use types::{Fields, ObjectType, Type};
pub use typing::{Identity, Typing, formatted};
pub use value::{BuiltObject, EvaluationResult, Fault, Key, List, Map, Text, Value};
