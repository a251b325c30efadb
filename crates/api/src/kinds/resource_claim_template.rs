//! ResourceClaimTemplate.

use crate::validation::device::{CLAIM_SPEC, claim_spec, default_claim_spec};
use crate::validation::dump::dump;
use crate::validation::values::{IMMUTABLE, same};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Map, Value, names};

pub static KIND: Kind = Kind {
    default: |template| {
        if let Some(spec) = template.at_mut("spec.spec") {
            default_claim_spec(spec);
        }
    },
    validate,
    validate_update,
    ..Kind::new("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", Scope::Namespaced)
};

fn validate(template: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), template.field("spec"));
    let (metadata, metadata_path) = (spec.field("metadata"), path.child("metadata"));
    let none = Map::new();
    let entries = |field| metadata.entries(field).unwrap_or(&none);
    let mut errors = names::validate_annotations(entries("annotations"), &metadata_path.child("annotations"));
    errors.extend(names::validate_labels(entries("labels"), &metadata_path.child("labels")));
    errors.extend(claim_spec(spec.field("spec"), &path.child("spec")));
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new);
    let spec = new.field("spec");
    if !same(spec, old.field("spec")) {
        errors.push(FieldError::invalid_shown(&Path::new("spec"), shown(spec), IMMUTABLE));
    }
    errors
}

/// The metadata's fields stand beside the spec, under their own names.
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
