//! The `ephemeralcontainers` subresource: containers can only be added.

use super::update::{restore, validate_annotation_changes};
use super::validate_annotations_and_spec;
use crate::pod_spec::annotations::MIRROR_POD;
use crate::pod_spec::{diff, disabled, layout, relaxed};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// Restores everything from the old pod but the ephemeral containers.
pub fn prepare(new: &mut Value, old: &Value) {
    let containers = new.child_mut("spec").unset("ephemeralContainers");
    keep_metadata(new, old);
    for name in ["spec", "status"] {
        restore(new, old, name);
    }
    if let Some(containers) = containers {
        new.child_mut("spec").set("ephemeralContainers", containers);
    } else {
        new.child_mut("spec").unset("ephemeralContainers");
    }
    disabled::drop_disabled_fields(new.child_mut("spec"), old.field("spec"));
}

/// Restores metadata that a subresource may not change.
pub fn keep_metadata(new: &mut Value, old: &Value) {
    let metadata = new.child_mut("metadata");
    for name in [
        "deletionTimestamp",
        "generation",
        "selfLink",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
    ] {
        restore(metadata, old.field("metadata"), name);
    }
}

pub fn validate(new: &Value, old: &Value) -> ErrorList {
    if old.at("metadata.annotations").has(MIRROR_POD) {
        let detail = "static pods do not support ephemeral containers";
        return vec![FieldError::forbidden(&Path::new(""), detail)];
    }
    let mut errors = Vec::new();
    let old_pod = Some((old.field("spec"), old.at("metadata.annotations")));
    relaxed::with_old(true, old_pod, &mut errors, |options, errors| {
        validate_annotations_and_spec(new, options, errors);
        validate_annotation_changes(new, old, options, errors);
    });
    let spec = Path::new("spec");
    let path = spec.child("ephemeralContainers");
    let containers = new.field("spec").items("ephemeralContainers");
    for old in old.field("spec").items("ephemeralContainers") {
        let name = old.text("name");
        match containers.iter().rev().find(|container| container.text("name") == name) {
            None => {
                let detail = format!("existing ephemeral containers {name:?} may not be removed\n");
                errors.push(FieldError::forbidden(&path, detail));
            }
            Some(new) if new != old => {
                let before = layout::internal_json_lines("EphemeralContainer", old);
                let after = layout::internal_json_lines("EphemeralContainer", new);
                let difference = diff::unified(&before, &after);
                let detail =
                    format!("existing ephemeral containers {name:?} may not be changed\n{difference}");
                errors.push(FieldError::forbidden(&path, detail));
            }
            Some(_) => {}
        }
    }
    errors
}
