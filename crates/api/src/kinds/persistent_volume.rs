//! PersistentVolume.

use crate::clock::now_text;
use crate::pod_spec::{diff, layout};
use crate::validation::label_selector::has_invalid_label_value;
use crate::validation::node_labels;
use crate::validation::persistent_volume::{Options, sources, validate_spec};
use crate::validation::resource_names::round_up_to_milli;
use crate::validation::values::{same, same_structs, unchanged};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update: crate::kind::keep_status,
    prepare_status_update,
    validate: |volume| validate(volume, Options::default()),
    validate_update,
    validate_status_update: |new, _| {
        let missing = meta::resource_version(new).is_empty();
        missing.then(|| FieldError::required(&Path::new("resourceVersion"), "")).into_iter().collect()
    },
    warnings: |new, _| warnings(new),
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::storage::PERSISTENT_VOLUME,
    returns_deleted: true,
    ..Kind::new("", "v1", "PersistentVolume", "persistentvolumes", Scope::Cluster)
};

fn default(volume: &mut Value) {
    volume.child_mut("status").default_if_zero("phase", "Pending");
    let spec = volume.child_mut("spec");
    spec.default_if_zero("persistentVolumeReclaimPolicy", "Retain");
    spec.default_to("volumeMode", "Filesystem");
    default_source(spec);
}

/// Defaults of a volume, also inside other objects.
pub(crate) fn default_source(spec: &mut Value) {
    round_up_to_milli(spec, "capacity");
    if let Some(host_path) = spec.field_mut("hostPath") {
        host_path.default_to("type", "");
    }
    if let Some(rbd) = spec.field_mut("rbd") {
        rbd.default_if_zero("pool", "rbd");
        rbd.default_if_zero("user", "admin");
        rbd.default_if_zero("keyring", "/etc/ceph/keyring");
    }
    if let Some(iscsi) = spec.field_mut("iscsi") {
        iscsi.default_if_zero("iscsiInterface", "default");
    }
    if let Some(disk) = spec.field_mut("azureDisk") {
        disk.default_to("cachingMode", "ReadWrite");
        disk.default_to("fsType", "ext4");
        disk.default_to("readOnly", false);
        disk.default_to("kind", "Shared");
    }
    if let Some(scale_io) = spec.field_mut("scaleIO") {
        scale_io.default_if_zero("storageMode", "ThinProvisioned");
        scale_io.default_if_zero("fsType", "xfs");
    }
}

fn prepare_create(volume: &mut Value) {
    let now = match meta::text(volume, "creationTimestamp") {
        "" => now_text(),
        created => created.to_owned(),
    };
    volume.set("status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
}

fn prepare_status_update(new: &mut Value, old: &Value) {
    crate::kind::keep_all_but_status(new, old);
    const TIME: &str = "lastPhaseTransitionTime";
    let before = old.field("status");
    let status = new.child_mut("status");
    let same_phase = status.text("phase") == before.text("phase");
    if same_phase && !status.has(TIME) {
        if before.has(TIME) {
            status.set(TIME, before.field(TIME).clone());
        }
    } else if !same_phase && (!status.has(TIME) || status.field(TIME) == before.field(TIME)) {
        status.set(TIME, now_text());
    }
}

const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn validate(volume: &Value, options: Options) -> ErrorList {
    let mut errors = validate_spec(volume.field("spec"), meta::name(volume), options, &Path::new("spec"));
    errors.extend(mount_options(volume));
    errors
}

/// The deprecated annotation for mount options is supported by some volume sources only.
fn mount_options(volume: &Value) -> Option<FieldError> {
    const MOUNTABLE: &[&str] = &[
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "glusterfs",
        "nfs",
        "rbd",
        "quobyte",
        "iscsi",
        "cinder",
        "cephfs",
        "azureFile",
        "vsphereVolume",
        "azureDisk",
        "photonPersistentDisk",
    ];
    let spec = volume.field("spec");
    meta::annotation(volume, MOUNT_OPTIONS).filter(|_| !MOUNTABLE.iter().any(|source| spec.has(source)))?;
    let path = Path::new("metadata");
    let path = path.child("annotations");
    let detail = "may not specify mount options for this volume type";
    Some(FieldError::forbidden(&path.child(MOUNT_OPTIONS), detail))
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let (spec, before) = (new.field("spec"), old.field("spec"));
    let terms = before.at("nodeAffinity.required").items("nodeSelectorTerms");
    let options =
        Options { allow_bad_label_values: terms.iter().any(has_invalid_label_value), inline: false };
    let mut errors = validate(new, options);
    // Kubernetes validates the new object twice, and reports errors twice.
    errors.extend(KIND.metadata_errors(new));
    errors.extend(validate_spec(spec, meta::name(new), options, &Path::new("spec")));
    errors.extend(source_changed(spec, before));
    errors.extend(unchanged(&Path::new("volumeMode"), spec.field("volumeMode"), before.field("volumeMode")));
    if before.has("nodeAffinity") && !same_affinity(spec.field("nodeAffinity"), before.field("nodeAffinity"))
    {
        let affinity = spec.field("nodeAffinity");
        let shown = match affinity.is_null() {
            true => "null".to_owned(),
            false => layout::internal_json("VolumeNodeAffinity", affinity),
        };
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.push(FieldError::invalid_shown(&Path::new("nodeAffinity"), shown, detail));
    }
    if before.has("volumeAttributesClassName") && !spec.has("volumeAttributesClassName") {
        let path = Path::new("spec");
        let detail = "update from non-nil value to nil is forbidden";
        errors.push(FieldError::forbidden(&path.child("volumeAttributesClassName"), detail));
    }
    errors
}

/// A volume's source is immutable, except that a secret for expansion may be added.
fn source_changed(spec: &Value, before: &Value) -> Option<FieldError> {
    const EXPAND: &str = "controllerExpandSecretRef";
    let mut after = source(spec);
    let before = source(before);
    if let Some(csi) = after.field_mut("csi")
        && before.has("csi")
        && !before.field("csi").has(EXPAND)
    {
        csi.unset(EXPAND);
    }
    if same_structs(&after, &before) {
        return None;
    }
    let lines = |source: &Value| layout::internal_json_lines("PersistentVolumeSource", source);
    let detail = format!(
        "spec.persistentvolumesource is immutable after creation\n{}",
        diff::unified(&lines(&before), &lines(&after))
    );
    let path = Path::new("spec");
    Some(FieldError::forbidden(&path.child("persistentvolumesource"), detail))
}

fn source(spec: &Value) -> Value {
    let mut source = json!({});
    for name in sources(spec) {
        source.set(name, spec.field(name).clone());
    }
    source
}

/// Renamed node labels may be replaced by their current names.
fn same_affinity(new: &Value, old: &Value) -> bool {
    const RENAMED: &[(&str, &str)] = &[
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    let mut renamed = old.clone();
    if let Some(selector) = renamed.field_mut("required") {
        let fresh = new.field("required").items("nodeSelectorTerms");
        for (term, fresh) in selector.items_mut("nodeSelectorTerms").iter_mut().zip(fresh) {
            let fresh = fresh.items("matchExpressions");
            for (expression, fresh) in term.items_mut("matchExpressions").iter_mut().zip(fresh) {
                if RENAMED.contains(&(expression.text("key"), fresh.text("key"))) {
                    expression.set("key", fresh.text("key"));
                }
            }
        }
    }
    same(new, &renamed)
}

fn warnings(volume: &Value) -> Vec<String> {
    let spec = volume.field("spec");
    let mut warnings = Vec::new();
    let annotations = [
        (STORAGE_CLASS, r#"deprecated since v1.8; use "storageClassName" attribute instead"#),
        (MOUNT_OPTIONS, r#"deprecated since v1.31; use "mountOptions" attribute instead"#),
    ];
    for (annotation, advice) in annotations {
        if meta::annotation(volume, annotation).is_some() {
            warnings.push(format!("metadata.annotations[{annotation}]: {advice}"));
        }
    }
    if spec.text("persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. \
             Instead, the recommended approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    let path = Path::new("spec");
    let path = path.child("nodeAffinity");
    warnings
        .extend(node_labels::selector_warnings(spec.at("nodeAffinity.required"), &path.child("required")));
    let gone = [
        ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ];
    let gone = gone.iter().filter(|(source, ..)| spec.has(source));
    warnings.extend(gone.map(|(_, shown, advice)| format!("spec.{shown}: {advice}")));
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_change_sets_transition_time() {
        let old = json!({"status": {"phase": "Pending", "lastPhaseTransitionTime": "2020-01-01T00:00:00Z"}});
        let mut new = json!({"status": {"phase": "Pending"}});
        prepare_status_update(&mut new, &old);
        assert_eq!(new, old);
        let mut new = json!({"status": {"phase": "Bound"}});
        prepare_status_update(&mut new, &old);
        assert_ne!(new["status"]["lastPhaseTransitionTime"], old["status"]["lastPhaseTransitionTime"]);
        let submitted =
            json!({"status": {"phase": "Bound", "lastPhaseTransitionTime": "2021-01-01T00:00:00Z"}});
        let mut new = submitted.clone();
        prepare_status_update(&mut new, &old);
        assert_eq!(new, submitted);
    }

    #[test]
    fn minimal_volume_gets_defaults() {
        let mut volume = json!({"spec": {"hostPath": {"path": "/x"}}});
        default(&mut volume);
        assert_eq!(
            volume,
            json!({
                "spec": {
                    "hostPath": {"path": "/x", "type": ""},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "volumeMode": "Filesystem",
                },
                "status": {"phase": "Pending"},
            })
        );
    }
}
