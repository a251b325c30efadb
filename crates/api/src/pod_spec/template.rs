//! Pod template of a workload kind.

use super::options::Options;
use super::{annotations, validate_pod_spec};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub fn validate_template(template: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    validate_metadata(template, options, path, errors);
    let (own, spec) = (template.at("metadata.annotations"), template.field("spec"));
    let spec_path = path.child("spec");
    validate_pod_spec(spec, &Value::Null, options, &spec_path, errors);
    annotations::validate_profiles_match(own, spec, &spec_path, errors);
    if !spec.items("ephemeralContainers").is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(&spec_path.child("ephemeralContainers"), detail));
    }
}

/// Labels and annotations of a template.
pub fn validate_metadata(template: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    let metadata = template.field("metadata");
    if let Some(labels) = metadata.entries("labels") {
        errors.extend(names::validate_labels(labels, &path.child("labels")));
    }
    let annotations_path = path.child("annotations");
    if let Some(annotations) = metadata.entries("annotations") {
        errors.extend(names::validate_annotations(annotations, &annotations_path));
    }
    let (own, spec) = (metadata.field("annotations"), template.field("spec"));
    annotations::validate_annotations(own, spec, options, &annotations_path, errors);
}
