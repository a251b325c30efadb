//! PersistentVolume.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::{Value, meta};
use serde_json::json;

pub static KIND: Kind = Kind {
    returns_deleted: true,
    default,
    prepare_create,
    prepare_update: crate::kind::keep_status,
    prepare_status_update,
    ..Kind::new("", "v1", "PersistentVolume", "persistentvolumes", Scope::Cluster)
};

fn default(volume: &mut Value) {
    volume.child_mut("status").default_if_zero("phase", "Pending");
    let spec = volume.child_mut("spec");
    spec.default_if_zero("persistentVolumeReclaimPolicy", "Retain");
    spec.default_to("volumeMode", "Filesystem");
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
        "" => now(),
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
        status.set(TIME, now());
    }
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_phase_follows_the_phase() {
        let old = json!({"status": {"phase": "Pending", "lastPhaseTransitionTime": "2020-01-01T00:00:00Z"}});
        let mut new = json!({"status": {"phase": "Pending"}});
        prepare_status_update(&mut new, &old);
        assert_eq!(new, old);
        let mut new = json!({"status": {"phase": "Bound"}});
        prepare_status_update(&mut new, &old);
        assert_ne!(new["status"]["lastPhaseTransitionTime"], old["status"]["lastPhaseTransitionTime"]);
        let given = json!({"status": {"phase": "Bound", "lastPhaseTransitionTime": "2021-01-01T00:00:00Z"}});
        let mut new = given.clone();
        prepare_status_update(&mut new, &old);
        assert_eq!(new, given);
    }

    #[test]
    fn defaults() {
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
