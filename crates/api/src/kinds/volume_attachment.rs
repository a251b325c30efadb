//! VolumeAttachment.

use crate::kind::{drop_status, keep_status};
use crate::pod_spec::layout;
use crate::validation::checks::dns_subdomain;
use crate::validation::persistent_volume::{self, Options};
use crate::validation::storage::driver_name;
use crate::validation::values::{IMMUTABLE, same};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

pub static KIND: Kind = Kind {
    default: |attachment| {
        if let Some(volume) = attachment.at_mut("spec.source.inlineVolumeSpec") {
            super::persistent_volume::default_source(volume);
        }
    },
    prepare_create: drop_status,
    prepare_update: keep_status,
    validate,
    validate_update,
    validate_status_update: validate_update,
    unconditional_update: false,
    prepare_status_update: crate::kind::keep_metadata_and_spec,
    metadata_on_update: &[MetadataCheck::New],
    metadata_on_status_update: &[MetadataCheck::New],
    reset_fields: crate::kind::METADATA_RESET_FIELDS,
    table: &crate::tables::storage::VOLUME_ATTACHMENT,
    returns_deleted: true,
    ..Kind::new("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", Scope::Cluster)
};

const METADATA_MAX: usize = 256 * 1024;
const MESSAGE_MAX: usize = 1024;

fn validate(attachment: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), attachment.field("spec"));
    let mut errors = driver_name(spec.text("attacher"), &path.child("attacher"));
    let source_path = path.child("source");
    let source = spec.field("source");
    let volume = source.opt_text("persistentVolumeName");
    let name_path = source_path.child("persistentVolumeName");
    const ONE_OF: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (volume, source.has("inlineVolumeSpec")) {
        (None, false) => errors.push(FieldError::required(&source_path, ONE_OF)),
        (Some(_), true) => errors.push(FieldError::forbidden(&source_path, ONE_OF)),
        (Some(""), false) => {
            errors.push(FieldError::required(&name_path, "must specify non empty persistentVolumeName"));
        }
        (None, true) => {
            let options = Options { inline: true, ..Options::default() };
            let path = source_path.child("inlineVolumeSpec");
            errors.extend(persistent_volume::validate_spec(
                source.field("inlineVolumeSpec"),
                "",
                options,
                &path,
            ));
        }
        _ => {}
    }
    errors.extend(dns_subdomain(&path.child("nodeName"), spec.text("nodeName")));
    errors.extend(validate_status(attachment.field("status")));
    if let Some(volume) = volume {
        errors.extend(dns_subdomain(&name_path, volume));
    }
    errors
}

fn validate_status(status: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let metadata = status.entries("attachmentMetadata").into_iter().flatten();
    let size: usize = metadata.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > METADATA_MAX {
        errors.push(FieldError::too_long(&path.child("attachmentMetadata"), METADATA_MAX));
    }
    for field in ["attachError", "detachError"] {
        let (path, error) = (path.child(field), status.field(field));
        if error.text("message").len() > MESSAGE_MAX {
            // The reported limit differs from the enforced one, as in Kubernetes.
            errors.push(FieldError::too_long(&path.child("message"), METADATA_MAX));
        }
        if let Some(code) = error.opt_int("errorCode").filter(|code| *code < 0) {
            let detail = names::range_error(0, i32::MAX.into());
            errors.push(FieldError::invalid(&path.child("errorCode"), &code.into(), detail));
        }
    }
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

fn shown(spec: &Value) -> String {
    let [attacher, node] = ["attacher", "nodeName"].map(|field| Value::from(spec.text(field)));
    let source = spec.field("source");
    let volume = source.field("persistentVolumeName");
    let inline = match source.field("inlineVolumeSpec") {
        Value::Null => "null".to_owned(),
        inline => layout::internal_json("PersistentVolumeSpec", inline),
    };
    format!(
        r#"{{"Attacher":{attacher},"Source":{{"PersistentVolumeName":{volume},"InlineVolumeSpec":{inline}}},"NodeName":{node}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inline_volume_gets_volume_defaults() {
        let mut attachment =
            json!({"spec": {"source": {"inlineVolumeSpec": {"azureDisk": {"diskName": "d"}}}}});
        (KIND.default)(&mut attachment);
        let disk = attachment.at("spec.source.inlineVolumeSpec.azureDisk");
        assert_eq!((disk.text("kind"), disk.text("fsType")), ("Shared", "ext4"));
        let shown = shown(attachment.field("spec"));
        assert!(
            shown.contains(r#""InlineVolumeSpec":{"Capacity":null,"GCEPersistentDisk":null,"#),
            "{shown}"
        );
    }

    #[test]
    fn inline_volume_is_validated_as_volume() {
        let attachment = |inline: Value| json!({"spec": {"attacher": "a.b", "nodeName": "n", "source": {"inlineVolumeSpec": inline}}});
        let csi = json!({"driver": "a.b", "volumeHandle": "h"});
        let cases = [
            (json!({"accessModes": ["ReadWriteOnce"], "csi": csi}), 0),
            (json!({"csi": csi}), 1),
            (json!({"accessModes": ["ReadWriteOnce"], "csi": csi, "volumeAttributesClassName": "-"}), 0),
            (json!({}), 3),
            (json!({"accessModes": ["ReadWriteOnce"], "csi": csi, "storageClassName": "x"}), 1),
        ];
        for (inline, errors) in cases {
            assert_eq!(validate(&attachment(inline.clone())).len(), errors, "{inline}");
        }
    }
}
