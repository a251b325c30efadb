//! ResourceClaimTemplate.

use crate::kind::{StoredAs, renamed_version};
use crate::pod_spec::volume_sources::validate_template_metadata;
use crate::validation::device::{CLAIM_SPEC, claim_spec, default_claim_spec};
use crate::validation::device_v1beta1;
use crate::validation::dump::dump;
use crate::validation::values::{IMMUTABLE, same};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub static KIND: Kind = Kind {
    default: |template| {
        if let Some(spec) = template.at_mut("spec.spec") {
            default_claim_spec(spec);
        }
    },
    validate,
    validate_update,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::resource::NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::new("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", Scope::Namespaced)
};

/// Requests and devices have another form in this version: see [`crate::validation::device_v1beta1`].
pub static KIND_V1BETA1: Kind = Kind {
    version: "v1beta1",
    default: device_v1beta1::default_template,
    deprecation: Some(
        "resource.k8s.io/v1beta1 ResourceClaimTemplate is deprecated in v1.35+, unavailable in v1.38+",
    ),
    stored_as: Some(&StoredAs {
        kind: &KIND,
        to_stored: device_v1beta1::template_to_v1,
        from_stored: device_v1beta1::template_from_v1,
        rules_of_stored: true,
    }),
    ..KIND
};

pub static KIND_V1BETA2: Kind = renamed_version!(
    KIND,
    "resource.k8s.io",
    "v1",
    "v1beta2",
    Some("resource.k8s.io/v1beta2 ResourceClaimTemplate is deprecated in v1.36+, unavailable in v1.39+")
);

fn validate(template: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), template.field("spec"));
    let mut errors = Vec::new();
    validate_template_metadata(spec.field("metadata"), &path.child("metadata"), &mut errors);
    errors.extend(claim_spec(spec.field("spec"), &path.child("spec")));
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new);
    errors.extend(KIND.metadata_update_errors(new, old));
    let spec = new.field("spec");
    if !same(spec, old.field("spec")) {
        errors.push(FieldError::invalid_shown(&Path::new("spec"), shown(spec), IMMUTABLE));
    }
    errors
}

/// Metadata fields are shown beside the spec, under their own names.
fn shown(spec: &Value) -> String {
    let mut out = String::from("{");
    for field in ["name", "generateName", "namespace", "labels", "annotations"] {
        if spec.field("metadata").has(field) {
            out.push_str(&format!("\"{field}\":{},", spec.field("metadata").field(field)));
        }
    }
    out.push_str(&format!("\"Spec\":{}}}", dump(spec.field("spec"), CLAIM_SPEC)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn template_metadata_allows_labels_and_annotations_only() {
        let template = |metadata: Value| json!({"spec": {"metadata": metadata, "spec": {}}});
        let cases = [
            (json!({"labels": {"a": "b"}, "annotations": {"a": "b"}}), &[][..]),
            (json!({"labels": {"-": "b"}, "uid": "u"}), &["spec.metadata.labels", "spec.metadata.uID"]),
            (
                json!({"generateName": "a", "finalizers": ["x"]}),
                &["spec.metadata.generateName", "spec.metadata.finalizers"],
            ),
        ];
        for (metadata, fields) in cases {
            let errors = validate(&template(metadata.clone()));
            let found: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(found, fields, "{metadata}");
        }
    }
}
