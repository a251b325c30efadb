//! Role.

use crate::validation::rbac;
use crate::{Kind, MetadataCheck, Scope};

pub static KIND: Kind = Kind {
    validate_name: rbac::name,
    validate: |role| rbac::rules(role, true),
    validate_update: |new, old| {
        let mut errors = rbac::rules(new, true);
        errors.extend(KIND.metadata_update_errors(new, old));
        errors
    },
    create_on_update: true,
    metadata_on_update: &[MetadataCheck::New],
    ..Kind::new(rbac::GROUP, "v1", "Role", "roles", Scope::Namespaced)
};
