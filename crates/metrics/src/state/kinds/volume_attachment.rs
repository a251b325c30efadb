//! VolumeAttachments. All their labels are shown, whatever the allow list.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha};
use crate::state::object::{at, entries};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "volumeattachments",
    kind: "VolumeAttachment",
    path: "/apis/storage.k8s.io/v1",
    is_namespaced: false,
    identity: &[("volumeattachment", NAME)],
    families: &[
        alpha("kube_volumeattachment_labels", LABELS_HELP, Source::Each(labels)),
        alpha(
            "kube_volumeattachment_info",
            "Attacher and node of an attachment.",
            Source::Info(&[("attacher", "spec.attacher"), ("node", "spec.nodeName")]),
        ),
        alpha("kube_volumeattachment_created", CREATED_HELP, CREATED),
        alpha(
            "kube_volumeattachment_spec_source_persistentvolume",
            "The attached PersistentVolume.",
            Source::Each(volume),
        ),
        alpha(
            "kube_volumeattachment_status_attached",
            "True if the volume is attached.",
            Source::Flag("status.attached"),
        ),
        alpha(
            "kube_volumeattachment_status_attachment_metadata",
            "Metadata that the attacher has returned.",
            Source::Each(metadata),
        ),
    ],
};

fn labels(attachment: &Value, series: &mut Series<'_>) {
    series.add_map("label", entries(attachment, "metadata.labels"));
}

fn volume(attachment: &Value, series: &mut Series<'_>) {
    if let Some(name) = at(attachment, "spec.source.persistentVolumeName").and_then(Value::as_str) {
        series.add(&[("volumename", name)], 1.0);
    }
}

fn metadata(attachment: &Value, series: &mut Series<'_>) {
    series.add_map("metadata", entries(attachment, "status.attachmentMetadata"));
}
