//! ValidatingAdmissionPolicyBinding.

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
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        Scope::Cluster,
    )
};

fn validate(binding: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), binding.field("spec"));
    let mut errors = admission_policy::binding_spec(spec, &path);
    errors.extend(admission_policy::validation_actions(spec, &path.child("validationActions")));
    errors
}
