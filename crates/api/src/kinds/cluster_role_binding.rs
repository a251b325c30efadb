//! ClusterRoleBinding.

use crate::validation::rbac;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::ErrorList;

pub static KIND: Kind = Kind {
    validate_name: rbac::name,
    default: rbac::default_binding,
    validate: |binding| rbac::binding(binding, false),
    validate_update,
    create_on_update: true,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::rbac::CLUSTER_ROLE_BINDING,
    ..Kind::new(rbac::GROUP, "v1", "ClusterRoleBinding", "clusterrolebindings", Scope::Cluster)
};

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = rbac::binding(new, false);
    errors.extend(KIND.metadata_update_errors(new, old));
    errors.extend(rbac::binding_update(new, old));
    errors
}
