//! Role.

use crate::validation::rbac;
use crate::{Kind, MetadataCheck, Scope};

pub static KIND: Kind = Kind {
    validate_name: rbac::name,
    validate: |role| rbac::rules(role, true),
    validate_update: |new, _| rbac::rules(new, true),
    create_on_update: true,
    metadata_on_update: &[MetadataCheck::New, MetadataCheck::Update],
    ..Kind::new(rbac::GROUP, "v1", "Role", "roles", Scope::Namespaced)
};
