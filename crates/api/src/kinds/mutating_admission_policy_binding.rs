//! MutatingAdmissionPolicyBinding.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    ..Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
        Scope::Cluster,
    )
};
