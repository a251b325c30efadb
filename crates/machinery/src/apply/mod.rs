//! Server-side apply: field sets, structured merge, managers.
//!
//! Two entry points maintain `metadata.managedFields`: [`update()`] for create, update and patch, [`apply()`] for
//! apply patches. Objects are decoded; `managedFields` of a request stay in the new object until then, even empty.

mod compare;
mod in_place;
mod managed;
mod manager;
mod merge;
mod new_object;
mod overlay;
mod path;
pub mod reset;
pub mod scale;
mod server_side;
mod set;
mod strip;
mod types;
mod walk;

pub use manager::{Context, Converter, manager_name, restore_times, update};
pub use overlay::{OverlayError, overlay};
pub use path::{PathElement, PathElementError};
pub use reset::Reset;
pub use server_side::{ApplyError, Conflict, apply};
pub use set::FieldSet;

/// Annotation of client-side apply with the last applied object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[cfg(test)]
mod tests;
