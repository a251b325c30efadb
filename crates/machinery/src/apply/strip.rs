//! Fields that no manager ever owns.

use super::set::FieldSet;
use std::sync::LazyLock;

/// System-managed fields of metadata; sorted.
pub(super) const METADATA: [&str; 9] = [
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The same as a set of paths, with the type of the object.
pub(super) static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
    let mut set = FieldSet::of_fields(&[&["apiVersion"], &["kind"], &["metadata"]]);
    for name in METADATA {
        set = set.union(&FieldSet::of_fields(&[&["metadata", name]]));
    }
    set
});
