//! Reset fields: fields that writers through a subresource cannot own, such as status on the main resource.

use super::set::FieldSet;
use serde_json::Value;

/// Reset fields of one subresource.
#[derive(Clone, Debug)]
pub enum Reset {
    /// No field is reset.
    Nothing,
    /// These fields and everything below them are reset.
    Exclude(FieldSet),
}

impl Reset {
    /// Resets the fields at these paths; none without paths.
    pub fn of_fields(paths: &[&[&str]]) -> Reset {
        if paths.is_empty() { Reset::Nothing } else { Reset::Exclude(FieldSet::of_fields(paths)) }
    }

    pub(super) fn filter(&self, set: FieldSet) -> FieldSet {
        match self {
            Reset::Nothing => set,
            Reset::Exclude(excluded) => set.without(excluded),
        }
    }
}

/// Reports whether a request's managedFields clear all managers: an empty list, or one empty entry.
pub(super) fn clears_managers(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}
