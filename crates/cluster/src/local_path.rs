//! Default storage: a StorageClass whose volumes are directories of the node that `ferry up` runs.
//!
//! Watches claims, volumes and storage classes; writes volumes. Every claim of the class gets one directory on the node
//! its pod was scheduled to; the directory is removed with the claim.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError, DeleteOptions, Object};
use objects::core::v1::{
    LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use objects::meta::v1::ObjectMeta;
use objects::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use objects::storage::v1::StorageClass;
use runtime::{Action, Cache, Context, Descriptor, Harness, Key, Loop, LoopError, Row};

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

/// Parent of the volumes' directories.
struct VolumeDirectory(PathBuf);

const DESCRIPTOR: Descriptor = Descriptor {
    name: "local-path-provisioner",
    resource: "persistentvolumeclaims",
    identity: USER,
    workers: 1,
};

const ROW: Row = Row { descriptor: &DESCRIPTOR, build, by_default: true };

/// Failure to provide or remove a volume.
#[derive(Debug, thiserror::Error)]
enum ProvisionError {
    #[error("failed to create the volume directory {}", .path.display())]
    CreateDirectory { path: PathBuf, source: io::Error },
    #[error("failed to create persistent volume {volume}")]
    CreateVolume { volume: String, source: ClientError },
    #[error("failed to remove the volume directory {}", .path.display())]
    RemoveDirectory { path: PathBuf, source: io::Error },
    #[error("failed to delete released persistent volume {volume}")]
    DeleteVolume { volume: String, source: ClientError },
}

/// Creates and removes volumes until `tasks` stops.
pub async fn run(
    client: Client,
    directory: PathBuf,
    clock: Clock,
    tasks: &TaskGroup,
) -> Result<(), ClientError> {
    let harness = Harness::new("local-path-provisioner", client.clone(), Arc::new(client), clock, tasks)
        .with_settings(vec![Box::new(VolumeDirectory(directory))]);
    harness.start(&ROW)?;
    tasks.stopping().await;
    Ok(())
}

/// The keys are those of claims, and of volumes, which have no namespace.
struct Provisioner {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    directory: PathBuf,
}

fn build(ctx: &Context) -> Box<dyn Loop> {
    let claims = ctx.watch_self::<PersistentVolumeClaim>();
    let volumes = ctx.watch::<PersistentVolume>(|change| {
        let volume = change.object();
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let claim =
            claim.and_then(|claim| Some(Key::new(claim.namespace.as_deref()?, claim.name.as_deref()?)));
        claim.into_iter().chain([Key::of(&**volume)]).collect()
    });
    let all = claims.clone();
    // Claims may be older than their class.
    let classes = ctx.watch::<StorageClass>(move |change| {
        let class = change.object().metadata.name.as_deref();
        let of_class = |claim: &&Arc<PersistentVolumeClaim>| {
            claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.as_deref() == class)
        };
        all.all().iter().filter(of_class).map(|claim| Key::of(&**claim)).collect()
    });
    let directory = ctx.setting::<VolumeDirectory>().map(|setting| setting.0.clone()).unwrap_or_default();
    Box::new(Provisioner { claims, volumes, classes, directory })
}

#[async_trait]
impl Loop for Provisioner {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        if key.namespace.is_empty() {
            if let Some(volume) = self.volumes.get_key(key).filter(|volume| is_released(volume)) {
                self.remove(&volume, &ctx.client).await?;
            }
        } else if let Some(volume) = self.missing_volume(key) {
            self.create(&volume, &ctx.client).await?;
        }
        Ok(Action::Done)
    }
}

impl Provisioner {
    fn missing_volume(&self, key: &Key) -> Option<PersistentVolume> {
        let claim = self.claims.get_key(key)?;
        let class = self.classes.get("", claim.spec.as_ref()?.storage_class_name.as_deref()?)?;
        let volume = volume_for(&claim, &class, &self.directory)?;
        self.volumes.get("", volume.metadata.name.as_deref()?).is_none().then_some(volume)
    }

    fn path_of(&self, volume: &PersistentVolume) -> (String, PathBuf) {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let path = self.directory.join(&name);
        (name, path)
    }

    async fn create(&self, volume: &PersistentVolume, client: &Client) -> Result<(), ProvisionError> {
        let (name, path) = self.path_of(volume);
        make_directory(&path).map_err(|source| ProvisionError::CreateDirectory { path, source })?;
        match client.create("", volume).await {
            Err(error) if !error.is_already_exists() => {
                Err(ProvisionError::CreateVolume { volume: name, source: error })
            }
            _ => Ok(()),
        }
    }

    async fn remove(&self, volume: &PersistentVolume, client: &Client) -> Result<(), ProvisionError> {
        let (name, path) = self.path_of(volume);
        let directory = path.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(directory)).await;
        match removed.map_err(io::Error::other).and_then(std::convert::identity) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(ProvisionError::RemoveDirectory { path, source });
            }
            _ => {}
        }
        match client.delete::<PersistentVolume>("", &name, &DeleteOptions::default()).await {
            Err(error) if !error.is_not_found() => {
                Err(ProvisionError::DeleteVolume { volume: name, source: error })
            }
            _ => Ok(()),
        }
    }
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
