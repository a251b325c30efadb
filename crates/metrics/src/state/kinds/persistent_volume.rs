//! PersistentVolumes.

use super::*;
use crate::state::family::{CREATED, DELETED, Kind, Source, alpha, stable};
use crate::state::object::{at, list, number, text, whole};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "persistentvolumes",
    kind: "PersistentVolume",
    path: "/api/v1",
    is_namespaced: false,
    identity: &[("persistentvolume", NAME)],
    families: &[
        stable("kube_persistentvolume_claim_ref", "The claim of a volume.", Source::Each(claim)),
        alpha("kube_persistentvolume_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_persistentvolume_labels", LABELS_HELP, Source::Labels),
        stable(
            "kube_persistentvolume_status_phase",
            "Phase of a volume.",
            Source::OneOf("phase", "status.phase", &["Pending", "Available", "Bound", "Released", "Failed"]),
        ),
        stable(
            "kube_persistentvolume_info",
            "Class, source and reclaim policy of a volume.",
            Source::Each(info),
        ),
        stable("kube_persistentvolume_capacity_bytes", "Size in bytes.", Source::Each(capacity)),
        alpha("kube_persistentvolume_created", CREATED_HELP, CREATED),
        alpha("kube_persistentvolume_deletion_timestamp", DELETED_HELP, DELETED),
        alpha(
            "kube_persistentvolume_csi_attributes",
            "Mounter and map options of a CSI volume.",
            Source::Each(csi_attributes),
        )
        .opt_in(),
        alpha("kube_persistentvolume_volume_mode", "Mode of a volume.", Source::Each(mode)),
    ],
};

fn claim(volume: &Value, series: &mut Series<'_>) {
    if let Some(claim) = at(volume, "spec.claimRef") {
        let labels = [("name", text(claim, "name")), ("claim_namespace", text(claim, "namespace"))];
        series.add(&labels, 1.0);
    }
}

/// Sources in order of precedence, with the labels of their fields.
const SOURCES: [(&str, &[(&str, &str)]); 9] = [
    ("gcePersistentDisk", &[("gce_persistent_disk_name", "pdName")]),
    ("awsElasticBlockStore", &[("ebs_volume_id", "volumeID")]),
    ("azureDisk", &[("azure_disk_name", "diskName")]),
    ("fc", &[("fc_wwids", "wwids"), ("fc_lun", "lun"), ("fc_target_wwns", "targetWWNs")]),
    (
        "iscsi",
        &[
            ("iscsi_target_portal", "targetPortal"),
            ("iscsi_iqn", "iqn"),
            ("iscsi_lun", "lun"),
            ("iscsi_initiator_name", "initiatorName"),
        ],
    ),
    ("nfs", &[("nfs_server", "server"), ("nfs_path", "path")]),
    ("csi", &[("csi_driver", "driver"), ("csi_volume_handle", "volumeHandle")]),
    ("local", &[("local_path", "path"), ("local_fs", "fsType")]),
    ("hostPath", &[("host_path", "path"), ("host_path_type", "type")]),
];

fn info(volume: &Value, series: &mut Series<'_>) {
    let present = SOURCES.iter().find_map(|(name, _)| {
        let spec = volume.get("spec")?;
        Some((*name, at(spec, name)?))
    });
    let mut values: Vec<(&str, String)> = Vec::new();
    for (name, fields) in SOURCES {
        for (label, field) in fields {
            let source = present.filter(|(one, _)| *one == name).map(|(_, source)| source);
            values.push((label, source.map(|source| shown(source, field)).unwrap_or_default()));
        }
    }
    let mut labels = vec![("storageclass", text(volume, "spec.storageClassName"))];
    labels.extend(values.iter().map(|(label, value)| (*label, value.as_str())));
    labels.push(("reclaim_policy", text(volume, "spec.persistentVolumeReclaimPolicy")));
    series.add(&labels, 1.0);
}

/// A text, a number, or texts with commas between them. The LUN of an iSCSI volume is 0 if absent.
fn shown(source: &Value, field: &str) -> String {
    if field == "lun" && source.get("iqn").is_some() {
        return number(source, field).unwrap_or(0.0).to_string();
    }
    match at(source, field) {
        Some(Value::Array(_)) => {
            let texts: Vec<_> = list(source, field).iter().filter_map(Value::as_str).collect();
            texts.join(",")
        }
        Some(Value::Number(number)) => number.to_string(),
        _ => text(source, field).to_owned(),
    }
}

fn capacity(volume: &Value, series: &mut Series<'_>) {
    series.add(&[], at(volume, "spec.capacity.storage").and_then(whole).unwrap_or(0.0));
}

fn csi_attributes(volume: &Value, series: &mut Series<'_>) {
    if let Some(csi) = at(volume, "spec.csi") {
        let labels = [
            ("csi_mounter", text(csi, "volumeAttributes.mounter")),
            ("csi_map_options", text(csi, "volumeAttributes.mapOptions")),
        ];
        series.add(&labels, 1.0);
    }
}

fn mode(volume: &Value, series: &mut Series<'_>) {
    let mode = at(volume, "spec.volumeMode").and_then(Value::as_str);
    series.add(&[("volumemode", mode.unwrap_or("Filesystem"))], 1.0);
}
