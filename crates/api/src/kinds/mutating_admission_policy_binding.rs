//! MutatingAdmissionPolicyBinding.

use crate::kind::renamed_version;
use crate::validation::{admission_policy, admission_rule};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, Path};

pub static KIND: Kind = Kind {
    any_finalizer: true,
    default: admission_policy::default_binding,
    validate,
    validate_update: |new, _| validate(new),
    warnings: |new, _| admission_rule::warnings(new),
    counts_generation: true,
    unconditional_update: false,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::admission::POLICY_BINDING,
    ..Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
        Scope::Cluster,
    )
};

pub static KIND_V1BETA1: Kind = renamed_version!(KIND, "admissionregistration.k8s.io", "v1", "v1beta1", None);

pub static KIND_V1ALPHA1: Kind = renamed_version!(
    KIND,
    "admissionregistration.k8s.io",
    "v1",
    "v1alpha1",
    Some(
        "admissionregistration.k8s.io/v1alpha1 MutatingAdmissionPolicyBinding is deprecated in v1.35+, unavailable in v1.38+"
    )
);

fn validate(binding: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), binding.field("spec"));
    let mut errors = admission_policy::binding_spec(spec, &path);
    let resources = spec.field("matchResources");
    errors.extend(admission_rule::mutating_operations(resources, &path.child("matchResources")));
    errors
}
