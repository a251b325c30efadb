//! Namespace predicates shared by the loops.

use objects::core::v1::Namespace;

/// True if new objects may be created in it.
#[must_use]
pub fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}
