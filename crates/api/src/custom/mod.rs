//! Schemas of custom resources: checks of what a definition may say, and what serving its objects needs.
//!
//! `schema` reads a schema as it was written; `structural`, `definition`, `merging`, `rules` and `defaults` check
//! definitions. [`compile`] turns a version of a definition into a [`CompiledVersion`]: nodes (`node`, shared by `intern`)
//! with their validation rules (`programs`), which prune (`prune`), set defaults (`defaulting`), bring embedded metadata
//! into form (`embedded`) and validate (`values`, `formats`, `lists`, `evaluation`; `correlation` finds old values), and
//! from which come types for server-side apply (`apply_schema`), columns, the scale subresource and selectable fields.

mod apply_schema;
mod columns;
mod compile;
mod correlation;
mod defaulting;
mod defaults;
pub mod definition;
mod embedded;
mod evaluation;
mod field_path;
mod formats;
mod intern;
mod lists;
mod merging;
mod node;
mod patterns;
mod programs;
mod prune;
mod rules;
mod scale;
pub mod schema;
pub mod selectable;
mod structural;
mod typing;
mod values;
mod version;

pub use columns::Column;
pub use embedded::Malformed;
pub use evaluation::Findings;
pub use scale::{FieldPath, Scale, ScaleValues};
pub use selectable::SelectableField;
pub use structural::{unsupported as structural_unsupported, violations as structural_violations};
pub use version::{CompileError, CompiledVersion, DecodeError, DefinitionSource, compile, compile_lazily};

/// Field that errors name when they are about the whole object, as Kubernetes' do.
const ROOT_FIELD: &str = "<nil>";
