//! The Common Expression Language as Kubernetes speaks it: rules that users write, compiled once and evaluated on JSON.
//!
//! An [`Environment`] declares variables with their types; [`Environment::compile`] parses an expression, checks its
//! types and finds every mistake that needs no data, in the words that users of Kubernetes know. A [`Program`] is
//! evaluated on [`Value`]s, which look at JSON where it is, within a limit on what it may cost. Policies, match
//! conditions, claim mappings and device selectors all go through here.

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
    About, Answers, Check, Decision, ResourceAbout, authorizer_type, resource_check_type,
};
pub use types::{Fields, ObjectType, Type};
pub use typing::{Identity, Typing, formatted};
pub use value::{Fault, Key, List, Made, Map, Outcome, Text, Value};
