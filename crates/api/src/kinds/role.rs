//! Role.

use crate::validation::rbac;
use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    validate_name: rbac::name,
    validate: |role| rbac::rules(role, true),
    validate_update: |new, _| rbac::rules(new, true),
    create_on_update: true,
    ..Kind::new(rbac::GROUP, "v1", "Role", "roles", Scope::Namespaced)
};
