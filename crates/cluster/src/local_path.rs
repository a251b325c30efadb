//! Default storage: a StorageClass whose volumes are directories of the node that `ferry up` runs.
//!
//! Watches claims and volumes; writes volumes. Every claim of the class gets one directory on the node its pod was
//! scheduled to; the directory is removed with the claim.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::tasks::TaskGroup;
use client::{Client, ClientError, DeleteOptions, Object};
use objects::core::v1::{
    LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use objects::meta::v1::ObjectMeta;
use objects::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use objects::storage::v1::StorageClass;
use runtime::Informers;
use tokio::sync::Notify;

/// Names of the class and of its provisioner.
const CLASS: &str = "local-path";
const PROVISIONER: &str = "ferry/local-path";
const ROLE: &str = "ferry:local-path-provisioner";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// User of the provisioner.
pub const USER: &str = "system:serviceaccount:kube-system:local-path-provisioner";

/// Creates the class and the provisioner's RBAC objects if missing; `administrator` may create them.
pub async fn install(administrator: &Client) -> Result<(), ClientError> {
    let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let class = StorageClass {
        metadata: ObjectMeta {
            annotations: Some(BTreeMap::from([(
                "storageclass.kubernetes.io/is-default-class".to_owned(),
                "true".to_owned(),
            )])),
            ..named(CLASS)
        },
        provisioner: PROVISIONER.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        ..StorageClass::default()
    };
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(resources.iter().map(|text| (*text).to_owned()).collect()),
        verbs: verbs.iter().map(|text| (*text).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let role = ClusterRole {
        metadata: named(ROLE),
        rules: Some(vec![
            rule("", &["persistentvolumes"], &["get", "list", "watch", "create", "delete"]),
            rule("", &["persistentvolumeclaims"], &["get", "list", "watch"]),
            rule("storage.k8s.io", &["storageclasses"], &["get", "list", "watch"]),
        ]),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: named(ROLE),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: ROLE.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: "local-path-provisioner".to_owned(),
            namespace: Some("kube-system".to_owned()),
            ..Subject::default()
        }]),
    };
    ensure(administrator, &class).await?;
    ensure(administrator, &role).await?;
    ensure(administrator, &binding).await
}

async fn ensure<K: Object>(client: &Client, object: &K) -> Result<(), ClientError> {
    match client.create("", object).await {
        Err(error) if error.is_already_exists() => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}

/// Creates and removes volumes until `tasks` stops.
pub async fn run(client: Client, directory: PathBuf, tasks: TaskGroup) {
    let informers = Informers::new(client.clone(), &tasks);
    let (claims, volumes, classes) = (
        informers.of::<PersistentVolumeClaim>(),
        informers.of::<PersistentVolume>(),
        informers.of::<StorageClass>(),
    );
    let changed = Arc::new(Notify::new());
    let told = Arc::clone(&changed);
    claims.on_event(move |_| told.notify_one());
    let told = Arc::clone(&changed);
    volumes.on_event(move |_| told.notify_one());
    claims.synced().await;
    volumes.synced().await;
    classes.synced().await;
    loop {
        for claim in claims.all() {
            let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or("");
            let Some(class) = classes.get("", class) else { continue };
            let Some(volume) = volume_for(&claim, &class, &directory) else { continue };
            let name = volume.metadata.name.clone().unwrap_or_default();
            if volumes.get("", &name).is_some() {
                continue;
            }
            let made = make_directory(&directory.join(&name)).map_err(|error| error.to_string());
            let made = match made {
                Ok(()) => client.create("", &volume).await.map(|_| ()).or_else(ignore_existing),
                Err(error) => {
                    tracing::warn!(error, volume = name, "failed to create the volume directory");
                    continue;
                }
            };
            if let Err(error) = made {
                tracing::warn!(%error, volume = name, "failed to create the persistent volume");
            }
        }
        for volume in volumes.all().iter().filter(|volume| is_released(volume)) {
            let name = volume.metadata.name.clone().unwrap_or_default();
            let path = directory.join(&name);
            let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(path)).await;
            if let Ok(Err(error)) = removed
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(%error, volume = name, "failed to remove the volume directory");
                continue;
            }
            let outcome = client.delete::<PersistentVolume>("", &name, &DeleteOptions::default()).await;
            if let Err(error) = outcome
                && !error.is_not_found()
            {
                tracing::warn!(%error, volume = name, "failed to delete the released persistent volume");
            }
        }
        if tasks.until_stopped(changed.notified()).await.is_none() {
            return;
        }
    }
}

fn ignore_existing(error: ClientError) -> Result<(), ClientError> {
    if error.is_already_exists() { Ok(()) } else { Err(error) }
}

fn make_directory(path: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(path)?;
    // Writable for any user of the pod.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
}

/// Volume for a pending claim of this class with a selected node.
fn volume_for(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    directory: &Path,
) -> Option<PersistentVolume> {
    let (meta, spec) = (&claim.metadata, claim.spec.as_ref()?);
    let bound = spec.volume_name.as_deref().is_some_and(|name| !name.is_empty());
    let ours = class.provisioner == PROVISIONER && spec.volume_mode.as_deref() != Some("Block");
    if !ours || bound || meta.deletion_timestamp.is_some() {
        return None;
    }
    let node = meta.annotations.as_ref()?.get(SELECTED_NODE)?;
    let name = format!("pvc-{}", meta.uid.as_deref()?);
    let storage = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?.clone();
    let here = NodeSelectorRequirement {
        key: "kubernetes.io/hostname".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.clone()]),
    };
    Some(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes.clone(),
            capacity: Some(BTreeMap::from([("storage".to_owned(), storage)])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                field_path: None,
            }),
            local: Some(LocalVolumeSource {
                path: directory.join(&name).display().to_string(),
                fs_type: None,
            }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector {
                    node_selector_terms: vec![NodeSelectorTerm {
                        match_expressions: Some(vec![here]),
                        match_fields: None,
                    }],
                }),
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    })
}

/// True if a volume of this provisioner is released and must be deleted.
fn is_released(volume: &PersistentVolume) -> bool {
    let ours = volume.metadata.annotations.as_ref().and_then(|annotations| annotations.get(PROVISIONED_BY));
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    ours.is_some_and(|by| by == PROVISIONER)
        && phase == Some("Released")
        && policy == Some("Delete")
        && volume.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::Quantity;
    use objects::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeStatus, VolumeResourceRequirements};

    fn claim(node: Option<&str>) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.uid = Some("u".to_owned());
        claim.metadata.annotations =
            node.map(|node| BTreeMap::from([(SELECTED_NODE.to_owned(), node.to_owned())]));
        let requests = BTreeMap::from([("storage".to_owned(), Quantity("1Gi".to_owned()))]);
        claim.spec = Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements { requests: Some(requests), limits: None }),
            ..PersistentVolumeClaimSpec::default()
        });
        claim
    }

    fn class(provisioner: &str) -> StorageClass {
        StorageClass {
            provisioner: provisioner.to_owned(),
            reclaim_policy: Some("Delete".to_owned()),
            ..StorageClass::default()
        }
    }

    #[test]
    fn claim_with_selected_node_gets_directory_volume() {
        let volume = volume_for(&claim(Some("n1")), &class(PROVISIONER), Path::new("/d")).expect("a volume");
        let spec = volume.spec.expect("a spec");
        assert_eq!(spec.local.map(|local| local.path).as_deref(), Some("/d/pvc-u"));
        assert!(volume_for(&claim(None), &class(PROVISIONER), Path::new("/d")).is_none(), "no node yet");
        assert!(volume_for(&claim(Some("n1")), &class("other"), Path::new("/d")).is_none());
        let mut bound = claim(Some("n1"));
        if let Some(spec) = &mut bound.spec {
            spec.volume_name = Some("v".to_owned());
        }
        assert!(volume_for(&bound, &class(PROVISIONER), Path::new("/d")).is_none());
    }

    #[test]
    fn only_own_released_volumes_are_deleted() {
        let mut volume =
            volume_for(&claim(Some("n1")), &class(PROVISIONER), Path::new("/d")).expect("a volume");
        assert!(!is_released(&volume));
        volume.status =
            Some(PersistentVolumeStatus { phase: Some("Released".to_owned()), ..Default::default() });
        assert!(is_released(&volume));
        volume.metadata.annotations = None;
        assert!(!is_released(&volume));
    }
}
