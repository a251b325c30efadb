//! API objects that a pod references: mirror pods must have none.

use crate::admission::secret_references;
use api::pod_spec::container_lists;
use api::value::Fields;
use machinery::Value;

/// Volume sources without API references.
const PLAIN: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// Volume sources with an API reference, and its kind.
const REFERRING: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

/// The same for sources of projected volumes.
const PROJECTED: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// First kind of object that the pod references; an error for an unknown volume source.
pub fn first(pod: &Value) -> Result<Option<&'static str>, String> {
    let spec = pod.field("spec");
    if !spec.text("serviceAccountName").is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if secret_references::any(spec) {
        return Ok(Some("secrets"));
    }
    if names_config_map(spec) {
        return Ok(Some("configmaps"));
    }
    if !spec.items("resourceClaims").is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in spec.items("volumes") {
        let found = of_volume(volume)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn of_volume(volume: &Value) -> Result<Option<&'static str>, String> {
    let name = volume.text("name");
    if PLAIN.iter().any(|source| volume.has(source)) {
        return Ok(None);
    }
    if let Some((_, what)) = REFERRING.iter().find(|(source, _)| volume.has(source)) {
        return Ok(Some(what));
    }
    if !volume.has("projected") {
        return Err(format!("unknown volume type for volume  {name:?}"));
    }
    for source in volume.field("projected").items("sources") {
        if let Some((_, what)) = PROJECTED.iter().find(|(field, _)| source.has(field)) {
            return Ok(Some(what));
        }
        if !source.has("downwardAPI") {
            return Err(format!("unknown source for projected volume {name:?}"));
        }
    }
    Ok(None)
}

fn names_config_map(spec: &Value) -> bool {
    let in_container = |container: &Value| {
        container.items("env").iter().any(|v| v.field("valueFrom").field("configMapKeyRef").is_object())
            || container.items("envFrom").iter().any(|source| source.field("configMapRef").is_object())
    };
    let in_volume = |volume: &Value| {
        volume.has("configMap")
            || volume.field("projected").items("sources").iter().any(|source| source.has("configMap"))
    };
    container_lists(spec).any(|(_, list)| list.iter().any(in_container))
        || spec.items("volumes").iter().any(in_volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn first_api_reference_is_reported() {
        for (spec, want) in [
            (
                json!({"containers": [{"name": "c"}], "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
                Ok(None),
            ),
            (json!({"serviceAccountName": "x"}), Ok(Some("serviceaccounts"))),
            (json!({"imagePullSecrets": [{"name": "x"}]}), Ok(Some("secrets"))),
            (json!({"containers": [{"envFrom": [{"configMapRef": {"name": "x"}}]}]}), Ok(Some("configmaps"))),
            (json!({"resourceClaims": [{"name": "x"}]}), Ok(Some("resourceclaims"))),
            (json!({"volumes": [{"csi": {"driver": "x"}}]}), Ok(Some("csidrivers (via CSI volumes)"))),
            (
                json!({"volumes": [{"projected": {"sources": [{"downwardAPI": {}}, {"podCertificate": {}}]}}]}),
                Ok(Some("podcertificates")),
            ),
            (
                json!({"volumes": [{"name": "v", "new": {}}]}),
                Err("unknown volume type for volume  \"v\"".to_owned()),
            ),
        ] {
            assert_eq!(first(&json!({"spec": spec})), want, "{spec}");
        }
    }
}
