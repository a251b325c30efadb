//! Objects that the pods of each node refer to, updated incrementally per object.

use machinery::{Value, meta};
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    Pod,
    Secret,
    ConfigMap,
    ServiceAccount,
    PersistentVolumeClaim,
    PersistentVolume,
    ResourceClaim,
}

/// Kind and `namespace/name`.
type Reference = (ObjectKind, Box<str>);

/// Volume sources of pods that refer to a secret, and the field: its name, or an object with it.
const POD_VOLUME_SECRETS: [(&str, &str); 10] = [
    ("secret", "secretName"),
    ("azureFile", "secretName"),
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("flexVolume", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"),
    ("storageos", "secretRef"),
    ("csi", "nodePublishSecretRef"),
];

/// The same of persistent volumes; only those that the kubelet needs, not those for controllers.
const VOLUME_SECRETS: [(&str, &str); 10] = [
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("flexVolume", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"),
    ("storageos", "secretRef"),
    ("csi", "nodePublishSecretRef"),
    ("csi", "nodeStageSecretRef"),
    ("csi", "nodeExpandSecretRef"),
];

/// The claim a volume is bound to, and its secrets; all as `namespace/name`.
#[derive(Debug)]
struct Volume {
    claim: Box<str>,
    secrets: Vec<Box<str>>,
}

#[derive(Debug, Default)]
pub struct References {
    /// By `namespace/name`: the node of a pod and its references.
    pods: HashMap<Box<str>, (Box<str>, Vec<Reference>)>,
    /// By node: number of its pods that refer to an object.
    nodes: HashMap<Box<str>, HashMap<Reference, usize>>,
    /// By name.
    volumes: HashMap<Box<str>, Volume>,
    /// By secret: the volumes that refer to it.
    volumes_of_secret: HashMap<Box<str>, HashSet<Box<str>>>,
}

impl References {
    /// Reports whether an object on the node refers to this one.
    pub fn relates(&self, node: &str, kind: ObjectKind, namespace: &str, name: &str) -> bool {
        let Some(known) = self.nodes.get(node) else { return false };
        let refers = |kind: ObjectKind, key: Box<str>| known.contains_key(&(kind, key));
        let through = |volume: &str| {
            let bound = self.volumes.get(volume);
            bound.is_some_and(|volume| refers(ObjectKind::PersistentVolumeClaim, volume.claim.clone()))
        };
        if kind == ObjectKind::PersistentVolume {
            return through(name);
        }
        let key: Box<str> = format!("{namespace}/{name}").into();
        if kind == ObjectKind::Secret
            && self.volumes_of_secret.get(&key).is_some_and(|volumes| volumes.iter().any(|v| through(v)))
        {
            return true;
        }
        refers(kind, key)
    }

    pub fn clear_pods(&mut self) {
        self.pods.clear();
        self.nodes.clear();
    }

    pub fn clear_volumes(&mut self) {
        self.volumes.clear();
        self.volumes_of_secret.clear();
    }

    /// Adds or updates a pod. `key` is `namespace/name`.
    pub fn put_pod(&mut self, key: &str, bytes: &[u8]) {
        self.remove_pod(key);
        let Ok(pod) = serde_json::from_slice::<Value>(bytes) else { return };
        let node = pod["spec"]["nodeName"].as_str().unwrap_or("");
        if node.is_empty() {
            return;
        }
        let references = references_of(&pod);
        let counts = self.nodes.entry(node.into()).or_default();
        for reference in &references {
            *counts.entry(reference.clone()).or_default() += 1;
        }
        self.pods.insert(key.into(), (node.into(), references));
    }

    pub fn remove_pod(&mut self, key: &str) {
        let Some((node, references)) = self.pods.remove(key) else { return };
        let Some(counts) = self.nodes.get_mut(&node) else { return };
        for reference in references {
            if let Some(count) = counts.get_mut(&reference) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&reference);
                }
            }
        }
        if counts.is_empty() {
            self.nodes.remove(&node);
        }
    }

    /// Adds or updates a persistent volume.
    pub fn put_volume(&mut self, key: &str, bytes: &[u8]) {
        self.remove_volume(key);
        let Ok(volume) = serde_json::from_slice::<Value>(bytes) else { return };
        let claim = &volume["spec"]["claimRef"];
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let (namespace, name) = (text(&claim["namespace"]), text(&claim["name"]));
        if name.is_empty() {
            return;
        }
        let secrets = secrets_of_volume(&volume["spec"], &namespace);
        for secret in &secrets {
            self.volumes_of_secret.entry(secret.clone()).or_default().insert(key.into());
        }
        let claim = format!("{namespace}/{name}").into();
        self.volumes.insert(key.into(), Volume { claim, secrets });
    }

    pub fn remove_volume(&mut self, key: &str) {
        let Some(volume) = self.volumes.remove(key) else { return };
        for secret in volume.secrets {
            if let Some(volumes) = self.volumes_of_secret.get_mut(&secret) {
                volumes.remove(key);
                if volumes.is_empty() {
                    self.volumes_of_secret.remove(&secret);
                }
            }
        }
    }
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// References of a pod without duplicates; itself first.
fn references_of(pod: &Value) -> Vec<Reference> {
    let namespace = meta::namespace(pod);
    let mut found = Vec::new();
    let mut add = |kind: ObjectKind, name: &Value| {
        let name = name.as_str().unwrap_or("");
        let reference = (kind, format!("{namespace}/{name}").into());
        if !name.is_empty() && !found.contains(&reference) {
            found.push(reference);
        }
    };
    add(ObjectKind::Pod, &pod["metadata"]["name"]);
    // A node creates mirror pods itself: they must not grant it access to anything.
    if meta::annotation(pod, "kubernetes.io/config.mirror").is_some() {
        return found;
    }
    let spec = &pod["spec"];
    add(ObjectKind::ServiceAccount, &spec["serviceAccountName"]);
    for secret in items(spec, "imagePullSecrets") {
        add(ObjectKind::Secret, &secret["name"]);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec, list) {
            for variable in items(container, "env") {
                add(ObjectKind::Secret, &variable["valueFrom"]["secretKeyRef"]["name"]);
                add(ObjectKind::ConfigMap, &variable["valueFrom"]["configMapKeyRef"]["name"]);
            }
            for source in items(container, "envFrom") {
                add(ObjectKind::Secret, &source["secretRef"]["name"]);
                add(ObjectKind::ConfigMap, &source["configMapRef"]["name"]);
            }
        }
    }
    for volume in items(spec, "volumes") {
        for (source, field) in POD_VOLUME_SECRETS {
            let named = &volume[source][field];
            add(ObjectKind::Secret, if named.is_object() { &named["name"] } else { named });
        }
        for source in items(&volume["projected"], "sources") {
            add(ObjectKind::Secret, &source["secret"]["name"]);
            add(ObjectKind::ConfigMap, &source["configMap"]["name"]);
        }
        add(ObjectKind::ConfigMap, &volume["configMap"]["name"]);
        add(ObjectKind::PersistentVolumeClaim, &volume["persistentVolumeClaim"]["claimName"]);
        if volume["ephemeral"].is_object() {
            let name = format!("{}-{}", meta::name(pod), volume["name"].as_str().unwrap_or(""));
            add(ObjectKind::PersistentVolumeClaim, &name.into());
        }
    }
    for claim in items(spec, "resourceClaims") {
        add(ObjectKind::ResourceClaim, &claim["resourceClaimName"]);
    }
    for claim in items(&pod["status"], "resourceClaimStatuses") {
        add(ObjectKind::ResourceClaim, &claim["resourceClaimName"]);
    }
    add(ObjectKind::ResourceClaim, &pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]);
    found
}

/// Secrets of a volume, as `namespace/name`; the default namespace is that of the claim.
fn secrets_of_volume(spec: &Value, claim_namespace: &str) -> Vec<Box<str>> {
    let mut found: Vec<Box<str>> = Vec::new();
    let mut add = |namespace: &Value, name: &Value| {
        let namespace = namespace.as_str().filter(|namespace| !namespace.is_empty());
        let name = name.as_str().unwrap_or("");
        let key: Box<str> = format!("{}/{name}", namespace.unwrap_or(claim_namespace)).into();
        if !name.is_empty() && !found.contains(&key) {
            found.push(key);
        }
    };
    add(&spec["azureFile"]["secretNamespace"], &spec["azureFile"]["secretName"]);
    for (source, field) in VOLUME_SECRETS {
        let named = &spec[source][field];
        add(&named["namespace"], &named["name"]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(node: &str) -> Vec<u8> {
        json!({
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {
                "nodeName": node,
                "serviceAccountName": "sa",
                "imagePullSecrets": [{"name": "pull"}],
                "containers": [{
                    "env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}],
                    "envFrom": [{"configMapRef": {"name": "all"}}],
                }],
                "volumes": [
                    {"name": "a", "secret": {"secretName": "vol"}},
                    {"name": "b", "projected": {"sources": [{"configMap": {"name": "proj"}}]}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
                    {"name": "d", "ephemeral": {}},
                    {"name": "e", "csi": {"nodePublishSecretRef": {"name": "csi"}}},
                ],
            },
        })
        .to_string()
        .into_bytes()
    }

    #[test]
    fn pod_references_are_accessible_to_its_node() {
        use ObjectKind::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
        let mut references = References::default();
        references.put_pod("n/p", &pod("n1"));
        let volume = json!({"spec": {
            "claimRef": {"namespace": "n", "name": "claim"},
            "csi": {"nodeStageSecretRef": {"namespace": "s", "name": "stage"},
                    "controllerPublishSecretRef": {"namespace": "s", "name": "control"}},
        }});
        references.put_volume("pv", volume.to_string().as_bytes());
        for (kind, namespace, name, want) in [
            (Pod, "n", "p", true),
            (Pod, "n", "q", false),
            (ServiceAccount, "n", "sa", true),
            (Secret, "n", "pull", true),
            (Secret, "n", "env", true),
            (Secret, "n", "vol", true),
            (Secret, "n", "csi", true),
            (Secret, "m", "vol", false),
            (ConfigMap, "n", "all", true),
            (ConfigMap, "n", "proj", true),
            (PersistentVolumeClaim, "n", "claim", true),
            (PersistentVolumeClaim, "n", "p-d", true),
            (PersistentVolume, "", "pv", true),
            (PersistentVolume, "", "other", false),
            (Secret, "s", "stage", true),
            (Secret, "s", "control", false),
        ] {
            assert_eq!(references.relates("n1", kind, namespace, name), want, "{kind:?} {namespace}/{name}");
            assert!(!references.relates("n2", kind, namespace, name), "{kind:?} {namespace}/{name}");
        }
        references.put_pod("n/p", &pod("n2"));
        assert!(references.relates("n2", Secret, "n", "vol"));
        assert!(!references.relates("n1", Secret, "n", "vol"));
        references.remove_pod("n/p");
        references.remove_volume("pv");
        assert!(references.nodes.is_empty() && references.volumes_of_secret.is_empty());
    }

    #[test]
    fn mirror_pod_references_are_not_accessible() {
        let mut object: Value = serde_json::from_slice(&pod("n1")).unwrap();
        object["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        let mut references = References::default();
        references.put_pod("n/p", object.to_string().as_bytes());
        assert!(references.relates("n1", ObjectKind::Pod, "n", "p"));
        assert!(!references.relates("n1", ObjectKind::Secret, "n", "vol"));
    }
}
