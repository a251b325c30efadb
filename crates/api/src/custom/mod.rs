//! Schemas of custom resources: validation of definitions, and compilation for serving their objects.
//!
//! `schema` reads a source schema; `structural`, `definition`, `merging`, `rules` and `defaults` validate
//! definitions. [`compile`] turns a version of a definition into a [`CompiledVersion`]: nodes (`node`, shared by
//! `intern`) with their validation rules (`programs`), which prune (`prune`), set defaults (`defaulting`), normalize
//! embedded metadata (`embedded`) and validate (`values`, `formats`, `lists`, `evaluation`; `correlation` finds old
//! values), and from which types for server-side apply (`apply_schema`), columns, the scale subresource and
//! selectable fields are built.

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
mod observed;
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
pub use observed::{ExpressionWork, observe_expressions};
pub use scale::{FieldPath, Scale, ScaleValues};
pub use selectable::SelectableField;
pub use structural::{unsupported as structural_unsupported, violations as structural_violations};
pub use version::{CompileError, CompiledVersion, DecodeError, DefinitionSource, compile, compile_lazily};

/// Field name of errors about the whole object, as in Kubernetes.
const ROOT_FIELD: &str = "<nil>";
