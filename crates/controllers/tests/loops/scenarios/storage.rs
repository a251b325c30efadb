//! Volumes, claims, their classes and attachments.

use serde_json::{Value, json};

use super::{at, pod};
use crate::steps::{Step, create, delete, gone, is, merge, none, some};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const NODES: &str = "/api/v1/nodes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";

fn claim(name: &str, class: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}},
    }})
}

fn volume(name: &str, class: &str, source: Value) -> Value {
    let mut volume = json!({"metadata": {"name": name}, "spec": {
        "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
    }});
    for (key, value) in source.as_object().into_iter().flatten() {
        volume["spec"][key] = value.clone();
    }
    volume
}

pub fn volumes() -> Vec<Step> {
    vec![
        create(VOLUMES, volume("disk", "manual", json!({"hostPath": {"path": "/tmp/x"}}))),
        is(&format!("{VOLUMES}/disk"), "/status/phase", json!("Available")),
        create(&at("volumes", "persistentvolumeclaims"), claim("data", "manual")),
        is(&at("volumes", "persistentvolumeclaims/data"), "/status/phase", json!("Bound")),
        is(&format!("{VOLUMES}/disk"), "/spec/claimRef/name", json!("data")),
        is(&format!("{VOLUMES}/disk"), "/status/phase", json!("Bound")),
        // In use, neither is deleted.
        create(NODES, json!({"metadata": {"name": "volume-node"}})),
        create(
            &at("volumes", "pods"),
            pod(
                "user",
                json!({"nodeName": "volume-node", "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
            ),
        ),
        delete(&at("volumes", "persistentvolumeclaims/data")),
        delete(&format!("{VOLUMES}/disk")),
        some(&at("volumes", "persistentvolumeclaims/data"), "/metadata/deletionTimestamp"),
        some(&format!("{VOLUMES}/disk"), "/metadata/deletionTimestamp"),
        delete(&at("volumes", "pods/user")),
        gone(&at("volumes", "persistentvolumeclaims/data")),
        gone(&format!("{VOLUMES}/disk")),
    ]
}

pub fn classes() -> Vec<Step> {
    vec![
        create(
            CLASSES,
            json!({"metadata": {"name": "fast"}, "driverName": "disks.example.com",
            "parameters": {"iops": "100"}}),
        ),
        is(&format!("{CLASSES}/fast"), "/metadata/finalizers/0", json!("kubernetes.io/vac-protection")),
        create(
            &at("classes", "persistentvolumeclaims"),
            json!({"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "volumeAttributesClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}}}}),
        ),
        is(&at("classes", "persistentvolumeclaims/data"), "/spec/volumeAttributesClassName", json!("fast")),
        // In use, it is not deleted.
        delete(&format!("{CLASSES}/fast")),
        some(&format!("{CLASSES}/fast"), "/metadata/deletionTimestamp"),
        delete(&at("classes", "persistentvolumeclaims/data")),
        gone(&format!("{CLASSES}/fast")),
    ]
}

pub fn ephemeral() -> Vec<Step> {
    vec![
        create(
            &at("ephemeral", "pods"),
            pod(
                "p",
                json!({"volumes": [{"name": "scratch", "ephemeral":
            {"volumeClaimTemplate": {"spec": claim("x", "none")["spec"]}}}]}),
            ),
        ),
        is(
            &at("ephemeral", "persistentvolumeclaims/p-scratch"),
            "/metadata/ownerReferences/0/name",
            json!("p"),
        ),
        delete(&at("ephemeral", "pods/p")),
        gone(&at("ephemeral", "persistentvolumeclaims/p-scratch")),
    ]
}

pub fn attach() -> Vec<Step> {
    vec![
        create(
            "/apis/storage.k8s.io/v1/csidrivers",
            json!({"metadata": {"name": "disks.example.com"},
            "spec": {"attachRequired": true}}),
        ),
        create(NODES, json!({"metadata": {"name": "attach-node"}})),
        create(
            VOLUMES,
            volume(
                "remote",
                "remote",
                json!({
            "csi": {"driver": "disks.example.com", "volumeHandle": "h1"}}),
            ),
        ),
        create(&at("attach", "persistentvolumeclaims"), claim("data", "remote")),
        is(&at("attach", "persistentvolumeclaims/data"), "/status/phase", json!("Bound")),
        create(
            &at("attach", "pods"),
            pod(
                "p",
                json!({"nodeName": "attach-node", "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
            ),
        ),
        is("/apis/storage.k8s.io/v1/volumeattachments", "/items/0/spec/nodeName", json!("attach-node")),
        is(
            "/apis/storage.k8s.io/v1/volumeattachments",
            "/items/0/spec/source/persistentVolumeName",
            json!("remote"),
        ),
        delete(&at("attach", "pods/p")),
        none("/apis/storage.k8s.io/v1/volumeattachments", "/items/0"),
    ]
}

pub fn expansion() -> Vec<Step> {
    vec![
        create(
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({"metadata": {"name": "grows"}, "provisioner": "nobody.example.com", "allowVolumeExpansion": true}),
        ),
        create(VOLUMES, volume("grows", "grows", json!({"hostPath": {"path": "/nowhere"}}))),
        create(&at("expansion", "persistentvolumeclaims"), claim("c", "grows")),
        is(&at("expansion", "persistentvolumeclaims/c"), "/status/phase", json!("Bound")),
        merge(
            &at("expansion", "persistentvolumeclaims/c"),
            json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}),
        ),
        some(&at("expansion", "events?fieldSelector=reason=ExternalExpanding"), "/items/0/message"),
    ]
}
