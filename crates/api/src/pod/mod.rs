//! Rules of pods that templates lack: QoS class, updates, status, resizing, ephemeral containers.

pub mod app_armor;
pub mod create;
pub mod ephemeral;
pub mod gated;
pub mod qos;
pub mod resize;
pub mod status;
pub mod update;

use crate::pod_spec::{Options, annotations, containers, validate_pod_spec};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// A pod's annotations and spec; the rest of its metadata is checked elsewhere.
fn validate_annotations_and_spec(pod: &Value, options: &Options, errors: &mut ErrorList) {
    let metadata = pod.field("metadata");
    let spec = pod.field("spec");
    let metadata_path = Path::new("metadata");
    let annotations_path = metadata_path.child("annotations");
    let own = metadata.field("annotations");
    annotations::validate_annotations(own, spec, options, &annotations_path, errors);
    let path = Path::new("spec");
    validate_pod_spec(spec, metadata, options, &path, errors);
    if spec.text("serviceAccountName").is_empty() {
        reject_tokens(spec, &path, errors);
    }
    for list in ["containers", "initContainers"] {
        let path = path.child(list);
        for (index, container) in spec.items(list).iter().enumerate() {
            containers::validate_only_for_pod(container, &path.index(index), errors);
        }
    }
}

/// A token projection needs a service account.
fn reject_tokens(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let volumes = path.child("volumes");
    for (index, volume) in spec.items("volumes").iter().enumerate() {
        let item = volumes.index(index);
        let projected = item.child("projected");
        let sources = projected.child("sources");
        for (index, source) in volume.field("projected").items("sources").iter().enumerate() {
            if source.has("serviceAccountToken") {
                let source = sources.index(index);
                let detail = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(&source.child("serviceAccountToken"), detail));
            }
        }
    }
}
