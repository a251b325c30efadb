//! Schemas of custom resources: what the author of a definition may say, and whether values are what a schema says.
//!
//! `schema` reads a schema as it was written. `structural` asks whether it says of every value what it is, `definition`
//! whether it says only what is supported, `merging` whether lists and maps can be merged as it says, `rules` whether its
//! expressions can be evaluated at a bearable cost, `defaults` whether its default values are values of it. `values` and
//! `formats` check values, `evaluation` asks the rules about them, `prune` takes away what a schema does not know.

mod defaults;
pub mod definition;
mod evaluation;
mod field_path;
mod formats;
mod merging;
mod patterns;
mod prune;
mod rules;
pub mod schema;
pub mod selectable;
mod structural;
mod values;
