//! Volumes, claims, storage classes and the CSI kinds.

use super::cell::{NONE, UNSET, age, count, flag, get, joined, list, name, or, quantity, text};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::Table;
use machinery::{Value, meta};

/// Annotation for the storage class from before there was a field.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(crate) static PERSISTENT_VOLUME: Table = plain(
    &[
        NAME,
        column("Capacity", "string", doc::PERSISTENT_VOLUME_SPEC_CAPACITY),
        column("Access Modes", "string", doc::PERSISTENT_VOLUME_SPEC_ACCESS_MODES),
        column("Reclaim Policy", "string", doc::PERSISTENT_VOLUME_SPEC_PERSISTENT_VOLUME_RECLAIM_POLICY),
        column("Status", "string", doc::PERSISTENT_VOLUME_STATUS_PHASE),
        column("Claim", "string", doc::PERSISTENT_VOLUME_SPEC_CLAIM_REF),
        column("StorageClass", "string", "StorageClass of the pv"),
        column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
        column("Reason", "string", doc::PERSISTENT_VOLUME_STATUS_REASON),
        AGE,
        wide("VolumeMode", "string", doc::PERSISTENT_VOLUME_SPEC_VOLUME_MODE),
    ],
    |volume, context| {
        let claim = get(volume, &["spec", "claimRef"])
            .map(|claim| format!("{}/{}", text(claim, &["namespace"]), text(claim, &["name"])));
        vec![
            name(volume),
            quantity(volume, &["spec", "capacity", "storage"]).into(),
            access_modes(list(volume, &["spec", "accessModes"])).into(),
            text(volume, &["spec", "persistentVolumeReclaimPolicy"]).into(),
            phase(volume).into(),
            claim.unwrap_or_default().into(),
            class(volume).into(),
            text_or_unset(volume, &["spec", "volumeAttributesClassName"]),
            text(volume, &["status", "reason"]).into(),
            age(volume, context),
            text_or_unset(volume, &["spec", "volumeMode"]),
        ]
    },
);

pub(crate) static PERSISTENT_VOLUME_CLAIM: Table = plain(
    &[
        NAME,
        column("Status", "string", doc::PERSISTENT_VOLUME_CLAIM_STATUS_PHASE),
        column("Volume", "string", doc::PERSISTENT_VOLUME_CLAIM_SPEC_VOLUME_NAME),
        column("Capacity", "string", doc::PERSISTENT_VOLUME_CLAIM_STATUS_CAPACITY),
        column("Access Modes", "string", doc::PERSISTENT_VOLUME_CLAIM_STATUS_ACCESS_MODES),
        column("StorageClass", "string", "StorageClass of the pvc"),
        column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
        AGE,
        wide("VolumeMode", "string", doc::PERSISTENT_VOLUME_CLAIM_SPEC_VOLUME_MODE),
    ],
    |claim, context| {
        let volume = text(claim, &["spec", "volumeName"]);
        let (capacity, modes) = if volume.is_empty() {
            ("", String::new())
        } else {
            let capacity = quantity(claim, &["status", "capacity", "storage"]);
            (capacity, access_modes(list(claim, &["status", "accessModes"])))
        };
        vec![
            name(claim),
            phase(claim).into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class(claim).into(),
            text_or_unset(claim, &["spec", "volumeAttributesClassName"]),
            age(claim, context),
            text_or_unset(claim, &["spec", "volumeMode"]),
        ]
    },
);

fn phase(object: &Value) -> &str {
    if meta::deletion_timestamp(object).is_some() {
        return "Terminating";
    }
    text(object, &["status", "phase"])
}

fn class(object: &Value) -> &str {
    meta::annotation(object, BETA_CLASS).unwrap_or_else(|| text(object, &["spec", "storageClassName"]))
}

fn text_or_unset(object: &Value, path: &[&str]) -> Value {
    get(object, path).and_then(Value::as_str).unwrap_or(UNSET).into()
}

/// Abbreviated access modes, in a fixed order.
fn access_modes(modes: &[Value]) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let short: Vec<&str> = known
        .iter()
        .filter(|(mode, _)| modes.iter().any(|have| have.as_str() == Some(mode)))
        .map(|(_, short)| *short)
        .collect();
    short.join(",")
}

pub(crate) static STORAGE_CLASS: Table = plain(
    &[
        NAME,
        column("Provisioner", "string", doc::STORAGE_CLASS_PROVISIONER),
        column("ReclaimPolicy", "string", doc::STORAGE_CLASS_RECLAIM_POLICY),
        column("VolumeBindingMode", "string", doc::STORAGE_CLASS_VOLUME_BINDING_MODE),
        column("AllowVolumeExpansion", "string", doc::STORAGE_CLASS_ALLOW_VOLUME_EXPANSION),
        AGE,
    ],
    |class, context| {
        let is_default = |key| meta::annotation(class, key) == Some("true");
        let default = is_default("storageclass.kubernetes.io/is-default-class")
            || is_default("storageclass.beta.kubernetes.io/is-default-class");
        let suffix = if default { " (default)" } else { "" };
        vec![
            format!("{}{suffix}", meta::name(class)).into(),
            text(class, &["provisioner"]).into(),
            or(text(class, &["reclaimPolicy"]), "Delete").into(),
            or(text(class, &["volumeBindingMode"]), "Immediate").into(),
            flag(class, &["allowVolumeExpansion"]).into(),
            age(class, context),
        ]
    },
);

pub(crate) static CSI_DRIVER: Table = plain(
    &[
        NAME,
        column("AttachRequired", "boolean", doc::CSI_DRIVER_SPEC_ATTACH_REQUIRED),
        column("PodInfoOnMount", "boolean", doc::CSI_DRIVER_SPEC_POD_INFO_ON_MOUNT),
        column("StorageCapacity", "boolean", doc::CSI_DRIVER_SPEC_STORAGE_CAPACITY),
        column("TokenRequests", "string", doc::CSI_DRIVER_SPEC_TOKEN_REQUESTS),
        column("RequiresRepublish", "boolean", doc::CSI_DRIVER_SPEC_REQUIRES_REPUBLISH),
        column("Modes", "string", doc::CSI_DRIVER_SPEC_VOLUME_LIFECYCLE_MODES),
        AGE,
    ],
    |driver, context| {
        let attach = get(driver, &["spec", "attachRequired"]).and_then(Value::as_bool).unwrap_or(true);
        let tokens = match get(driver, &["spec", "tokenRequests"]) {
            None => UNSET.to_owned(),
            Some(_) => {
                let requests = list(driver, &["spec", "tokenRequests"]).iter();
                requests.map(|request| text(request, &["audience"])).collect::<Vec<_>>().join(",")
            }
        };
        vec![
            name(driver),
            attach.into(),
            flag(driver, &["spec", "podInfoOnMount"]).into(),
            flag(driver, &["spec", "storageCapacity"]).into(),
            tokens.into(),
            flag(driver, &["spec", "requiresRepublish"]).into(),
            or(&joined(list(driver, &["spec", "volumeLifecycleModes"]), ","), NONE).into(),
            age(driver, context),
        ]
    },
);

pub(crate) static CSI_NODE: Table = plain(
    &[
        NAME,
        column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"),
        AGE,
    ],
    |node, context| vec![name(node), count(node, &["spec", "drivers"]).into(), age(node, context)],
);

pub(crate) static VOLUME_ATTACHMENT: Table = plain(
    &[
        NAME,
        column("Attacher", "string", doc::VOLUME_ATTACHMENT_SPEC_ATTACHER).formatted_name(),
        column("PV", "string", doc::VOLUME_ATTACHMENT_SOURCE_PERSISTENT_VOLUME_NAME),
        column("Node", "string", doc::VOLUME_ATTACHMENT_SPEC_NODE_NAME),
        column("Attached", "boolean", doc::VOLUME_ATTACHMENT_STATUS_ATTACHED),
        AGE,
    ],
    |attachment, context| {
        vec![
            name(attachment),
            text(attachment, &["spec", "attacher"]).into(),
            text(attachment, &["spec", "source", "persistentVolumeName"]).into(),
            text(attachment, &["spec", "nodeName"]).into(),
            flag(attachment, &["status", "attached"]).into(),
            age(attachment, context),
        ]
    },
);

pub(crate) static VOLUME_ATTRIBUTES_CLASS: Table = plain(
    &[NAME, column("DriverName", "string", doc::VOLUME_ATTRIBUTES_CLASS_DRIVER_NAME), AGE],
    |class, context| vec![name(class), text(class, &["driverName"]).into(), age(class, context)],
);

pub(crate) static STORAGE_VERSION_MIGRATION: Table = plain(
    &[
        column("Name", "string", doc::OBJECT_META_NAME),
        column("Resource", "string", "GroupResource to migrate"),
        column("Status", "string", "Status of the migration"),
    ],
    |migration, _| {
        let resource = text(migration, &["spec", "resource", "resource"]);
        let group = text(migration, &["spec", "resource", "group"]);
        let resource = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let conditions = list(migration, &["status", "conditions"]).iter();
        let status = conditions
            .filter(|condition| text(condition, &["status"]) == "True")
            .map(|condition| text(condition, &["type"]))
            .rfind(|kind| matches!(*kind, "Running" | "Failed" | "Succeeded"));
        vec![name(migration), resource.into(), status.unwrap_or("Unknown").into()]
    },
);
