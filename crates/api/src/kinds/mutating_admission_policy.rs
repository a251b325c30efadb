//! MutatingAdmissionPolicy.

use crate::kind::renamed_version;
use crate::validation::admission_policy;
use crate::validation::admission_rule::{self, REINVOCATION_POLICIES};
use crate::validation::checks::one_of;
use crate::validation::expression::Scope as Expressions;
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use expressions::Type;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub static KIND: Kind = Kind {
    any_finalizer: true,
    default: admission_policy::default_policy,
    validate: |policy| validate(policy, false),
    validate_update: |new, old| validate(new, admission_policy::keeps_match_conditions(new, old)),
    warnings: |new, _| admission_rule::warnings(new),
    counts_generation: true,
    unconditional_update: false,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::admission::MUTATING_ADMISSION_POLICY,
    ..Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicy",
        "mutatingadmissionpolicies",
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
        "admissionregistration.k8s.io/v1alpha1 MutatingAdmissionPolicy is deprecated in v1.35+, unavailable in v1.38+"
    )
);

fn validate(policy: &Value, ignore_match_conditions: bool) -> ErrorList {
    let (path, spec) = (Path::new("spec"), policy.field("spec"));
    let mut scope = Expressions::new(spec.has("paramKind"), true);
    let mut errors = admission_policy::spec_head(
        spec,
        ignore_match_conditions,
        &mut scope,
        &path,
        admission_rule::mutating_operations,
    );
    let mutations_path = path.child("mutations");
    let mutations = spec.items("mutations");
    if mutations.is_empty() {
        errors.push(FieldError::required(&mutations_path, "mutations must contain at least one item"));
    }
    for (index, mutation) in mutations.iter().enumerate() {
        errors.extend(self::mutation(mutation, &scope, &mutations_path.index(index)));
    }
    let path = path.child("reinvocationPolicy");
    match spec.text("reinvocationPolicy") {
        "" => errors.push(FieldError::required(&path, "")),
        policy => errors.extend(one_of(&path, policy, REINVOCATION_POLICIES)),
    }
    errors
}

fn mutation(mutation: &Value, scope: &Expressions, path: &Path<'_>) -> ErrorList {
    let patch_type = mutation.text("patchType");
    let (wanted, other, of) = match patch_type {
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Type::list(expressions::json_patch_type())),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", expressions::apply_configuration_type()),
        "" => return vec![FieldError::required(&path.child("patchType"), "")],
        unknown => {
            let supported = ["ApplyConfiguration", "JSONPatch"];
            return one_of(&path.child("patchType"), unknown, &supported);
        }
    };
    let mut errors = Vec::new();
    let wanted_path = path.child(wanted);
    if !mutation.has(wanted) {
        let detail = format!("must be specified when patchType is {patch_type}");
        errors.push(FieldError::required(&wanted_path, detail));
    } else {
        let (text, path) =
            (mutation.field(wanted).text("expression").trim(), wanted_path.child("expression"));
        if text.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else {
            errors.extend(scope.check_patch(text, of, &path));
        }
    }
    if mutation.has(other) {
        let detail = format!("must not be specified when patchType is {patch_type}");
        errors.push(FieldError::invalid_str(&path.child(other), &format!("{{{other}}}"), detail));
    }
    errors
}
