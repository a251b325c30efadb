//! The rules of a pod's spec, shared by pods and everything that holds a pod template.

pub mod defaults;
pub mod disabled;
pub mod image;

use crate::value::Fields;
use machinery::Value;

/// The lists of containers of a pod spec, in the order in which Kubernetes visits them.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The lists of containers with their names.
pub fn container_lists(spec: &Value) -> impl Iterator<Item = (&'static str, &[Value])> {
    CONTAINER_LISTS.into_iter().map(|list| (list, spec.items(list)))
}
