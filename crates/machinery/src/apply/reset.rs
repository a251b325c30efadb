//! Fields that a door resets, and that nobody comes to own through it: status at the main door, all but status at
//! the status door.

use super::set::FieldSet;
use serde_json::Value;

/// What a door lets through.
#[derive(Clone, Debug)]
pub enum Reset {
    /// Everything.
    Nothing,
    /// Everything but these fields and what is below them.
    Exclude(FieldSet),
}

impl Reset {
    /// What Kubernetes resets at a door of a built-in kind; `subresource` is empty for the main door.
    pub fn of(group: &str, resource: &str, has_status: bool, subresource: &str) -> Reset {
        match (subresource, group, resource) {
            ("", "certificates.k8s.io", "certificatesigningrequests") => exclude(&[&["spec"], &["status"]]),
            ("status", "certificates.k8s.io", "certificatesigningrequests") => {
                exclude(&[&["spec"], &["status", "conditions"]])
            }
            ("approval", _, "certificatesigningrequests") => {
                exclude(&[&["spec"], &["status", "certificate"]])
            }
            ("", "certificates.k8s.io", "podcertificaterequests") => Reset::Nothing,
            ("", _, _) if has_status => exclude(&[&["status"]]),
            ("finalize", "", "namespaces") => exclude(&[&["status"]]),
            ("status", "apps", "deployments") => exclude(&[&["spec"], &["metadata", "labels"]]),
            ("status", "", "pods") => {
                exclude(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]])
            }
            ("status", group, resource) if resets_metadata(group, resource) => {
                exclude(&[&["metadata"], &["spec"]])
            }
            ("status", _, _) => exclude(&[&["spec"]]),
            _ => Reset::Nothing,
        }
    }

    /// What a custom resource resets at its doors.
    pub fn of_custom(has_status: bool, subresource: &str) -> Reset {
        match subresource {
            "" if has_status => exclude(&[&["status"]]),
            "status" => exclude(&[&["metadata"], &["spec"]]),
            _ => Reset::Nothing,
        }
    }

    pub(super) fn filter(&self, set: FieldSet) -> FieldSet {
        match self {
            Reset::Nothing => set,
            Reset::Exclude(excluded) => set.without(excluded),
        }
    }
}

fn exclude(paths: &[&[&str]]) -> Reset {
    Reset::Exclude(FieldSet::of_fields(paths))
}

/// Kinds whose status door leaves metadata alone, too.
fn resets_metadata(group: &str, resource: &str) -> bool {
    matches!(
        group,
        "admissionregistration.k8s.io"
            | "apiregistration.k8s.io"
            | "flowcontrol.apiserver.k8s.io"
            | "internal.apiserver.k8s.io"
            | "resource.k8s.io"
            | "scheduling.k8s.io"
            | "storage.k8s.io"
            | "storagemigration.k8s.io"
    ) || (group == "networking.k8s.io" && resource == "servicecidrs")
}

/// Whether a request's managedFields ask to forget all managers: an empty list, or one empty entry.
pub(super) fn asks_to_forget(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}
