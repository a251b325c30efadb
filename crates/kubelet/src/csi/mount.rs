//! A driver's volume on its way into a pod: attached, staged, published, expanded; and back.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use client::{Client, ClientError, Patch};
use cri::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeServiceCapabilityRPCType,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    VolumeCapabilityAccessMode, VolumeCapabilityAccessModeMode, VolumeCapabilityAccessType,
    VolumeCapabilityMountVolume,
};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
    SecretReference,
};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use machinery::quantity::Quantity;
use serde_json::json;
use sha2::{Digest, Sha256};
use tonic::{Code, Status};

use super::driver::{Driver, Drivers, within};
use super::record::{self, Published};
use super::{attachment_name, inline_handle};
use crate::volumes::ownership;

/// Why a volume is not there.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NoDriver(String),
    #[error("volume {0} is not attached to this node yet: waiting for its VolumeAttachment")]
    NotAttached(String),
    #[error("reading {what}: {source}")]
    Read { what: String, source: ClientError },
    #[error("the secret {0} does not exist")]
    NoSecret(String),
    #[error("block volumes of drivers are not supported: {0}")]
    Block(String),
    #[error("{call}: {}", status.message())]
    Call { call: &'static str, status: Status },
    #[error("{path}: {source}")]
    Files { path: PathBuf, source: io::Error },
}

fn call(name: &'static str) -> impl FnOnce(Status) -> CsiError {
    move |status| CsiError::Call { call: name, status }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CsiError {
    let path = path.to_owned();
    |source| CsiError::Files { path, source }
}

/// What publishing needs.
pub struct Publishing<'a> {
    pub client: &'a Client,
    pub drivers: &'a Drivers,
    pub node: &'a str,
    /// The kubelet's directory, and the pod's.
    pub kubelet: &'a Path,
    pub pod_directory: &'a Path,
    pub pod: &'a Pod,
    pub fs_group: Option<u32>,
    /// Only if the top does not belong to the group already.
    pub group_on_mismatch: bool,
}

/// Kubernetes' names of modes in the interface's.
fn access_mode(modes: &[String]) -> VolumeCapabilityAccessModeMode {
    let has = |name: &str| modes.iter().any(|mode| mode == name);
    if has("ReadWriteMany") {
        VolumeCapabilityAccessModeMode::MultiNodeMultiWriter
    } else if has("ReadWriteOnce") || has("ReadWriteOncePod") {
        VolumeCapabilityAccessModeMode::SingleNodeWriter
    } else if has("ReadOnlyMany") {
        VolumeCapabilityAccessModeMode::MultiNodeReaderOnly
    } else {
        VolumeCapabilityAccessModeMode::SingleNodeWriter
    }
}

fn capability(
    fs_type: Option<&String>,
    flags: Option<&Vec<String>>,
    mode: VolumeCapabilityAccessModeMode,
    group: Option<u32>,
) -> VolumeCapability {
    let mount = VolumeCapabilityMountVolume {
        fs_type: fs_type.cloned().unwrap_or_default(),
        mount_flags: flags.cloned().unwrap_or_default(),
        volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
    };
    VolumeCapability {
        access_type: Some(VolumeCapabilityAccessType::Mount(mount)),
        access_mode: Some(VolumeCapabilityAccessMode { mode: mode as i32 }),
    }
}

/// Where a volume is staged on this node, for all pods.
fn staging_path(kubelet: &Path, driver: &str, handle: &str) -> PathBuf {
    let digest = hex::encode(Sha256::digest(handle));
    kubelet.join("plugins/kubernetes.io/csi").join(driver).join(digest).join("globalmount")
}

impl Publishing<'_> {
    fn driver(&self, name: &str) -> Result<Driver, CsiError> {
        self.drivers.find(name).ok_or_else(|| CsiError::NoDriver(name.to_owned()))
    }

    async fn settings(&self, name: &str) -> Result<Option<CSIDriver>, CsiError> {
        match self.client.get("", name).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(CsiError::Read { what: format!("csidriver {name}"), source }),
        }
    }

    async fn secret(
        &self,
        reference: Option<&SecretReference>,
    ) -> Result<BTreeMap<String, String>, CsiError> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let (namespace, name) = (
            reference.namespace.as_deref().unwrap_or_default(),
            reference.name.as_deref().unwrap_or_default(),
        );
        match self.client.get::<Secret>(namespace, name).await {
            Ok(secret) => Ok(secret
                .data
                .unwrap_or_default()
                .into_iter()
                .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
                .collect()),
            Err(error) if error.is_not_found() => Err(CsiError::NoSecret(format!("{namespace}/{name}"))),
            Err(source) => Err(CsiError::Read { what: format!("secret {namespace}/{name}"), source }),
        }
    }

    /// What the controller learned when it attached the volume.
    async fn attachment(&self, driver: &str, handle: &str) -> Result<BTreeMap<String, String>, CsiError> {
        let name = attachment_name(driver, handle, self.node);
        let found = match self.client.get::<VolumeAttachment>("", &name).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Err(CsiError::NotAttached(handle.to_owned())),
            Err(source) => return Err(CsiError::Read { what: format!("volumeattachment {name}"), source }),
        };
        let status = found.status.unwrap_or_default();
        if !status.attached {
            return Err(CsiError::NotAttached(handle.to_owned()));
        }
        Ok(status.attachment_metadata.unwrap_or_default())
    }

    /// What a driver that asks for it is told about the pod.
    fn about_pod(&self, settings: Option<&CSIDriver>, ephemeral: bool) -> BTreeMap<String, String> {
        if settings.and_then(|driver| driver.spec.pod_info_on_mount) != Some(true) {
            return BTreeMap::new();
        }
        let meta = &self.pod.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let account = self.pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let said = [
            ("csi.storage.k8s.io/pod.name", text(&meta.name)),
            ("csi.storage.k8s.io/pod.namespace", text(&meta.namespace)),
            ("csi.storage.k8s.io/pod.uid", text(&meta.uid)),
            ("csi.storage.k8s.io/serviceAccount.name", account.unwrap_or_default()),
            ("csi.storage.k8s.io/ephemeral", ephemeral.to_string()),
        ];
        said.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Makes a persistent volume available to the pod; where it is.
    pub async fn persistent(
        &self,
        volume: &PersistentVolume,
        source: &CSIPersistentVolumeSource,
        claim: &PersistentVolumeClaim,
        read_only: bool,
    ) -> Result<PathBuf, CsiError> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let spec = volume.spec.clone().unwrap_or_default();
        if spec.volume_mode.as_deref() == Some("Block") {
            return Err(CsiError::Block(name));
        }
        let driver = self.driver(&source.driver)?;
        let settings = self.settings(&source.driver).await?;
        let attach = settings.as_ref().and_then(|driver| driver.spec.attach_required) != Some(false);
        let context = if attach {
            self.attachment(&source.driver, &source.volume_handle).await?
        } else {
            BTreeMap::new()
        };
        let by_driver = driver.can(NodeServiceCapabilityRPCType::VolumeMountGroup);
        let capability = capability(
            source.fs_type.as_ref(),
            spec.mount_options.as_ref(),
            access_mode(spec.access_modes.as_deref().unwrap_or_default()),
            self.fs_group.filter(|_| by_driver),
        );
        let attributes = source.volume_attributes.clone().unwrap_or_default();
        let directory = record::directory(self.pod_directory, &name);
        let target = directory.join("mount");
        let mut published = Published {
            driver_name: source.driver.clone(),
            volume_handle: source.volume_handle.clone(),
            volume: name.clone(),
            volume_lifecycle_mode: "Persistent".to_owned(),
            staging_path: String::new(),
        };
        let stages = driver.can(NodeServiceCapabilityRPCType::StageUnstageVolume);
        let staging = staging_path(self.kubelet, &source.driver, &source.volume_handle);
        if stages {
            published.staging_path = staging.display().to_string();
        }
        if self.is_there(settings.as_ref(), &directory, &published) {
            self.expand(&driver, volume, source, claim, &target, &published).await?;
            return Ok(target);
        }
        if stages {
            // Noted first: whoever finds a half-made volume can take it away.
            published.write(&directory).map_err(at(&directory))?;
            fs::create_dir_all(&staging).map_err(at(&staging))?;
            let asked = NodeStageVolumeRequest {
                volume_id: source.volume_handle.clone(),
                publish_context: context.clone(),
                staging_target_path: published.staging_path.clone(),
                volume_capability: Some(capability.clone()),
                secrets: self.secret(source.node_stage_secret_ref.as_ref()).await?,
                volume_context: attributes.clone(),
            };
            driver.node().node_stage_volume(within(asked)).await.map_err(call("NodeStageVolume"))?;
        } else {
            published.write(&directory).map_err(at(&directory))?;
        }
        let fresh = !crate::volumes::is_mount_point(&target).unwrap_or(false);
        let mut volume_context = attributes;
        volume_context.extend(self.about_pod(settings.as_ref(), false));
        let asked = NodePublishVolumeRequest {
            volume_id: source.volume_handle.clone(),
            publish_context: context,
            staging_target_path: published.staging_path.clone(),
            target_path: target.display().to_string(),
            volume_capability: Some(capability),
            readonly: read_only || source.read_only == Some(true),
            secrets: self.secret(source.node_publish_secret_ref.as_ref()).await?,
            volume_context,
        };
        let read_only = asked.readonly;
        driver.node().node_publish_volume(within(asked)).await.map_err(call("NodePublishVolume"))?;
        self.expand(&driver, volume, source, claim, &target, &published).await?;
        let policy = settings.as_ref().and_then(|driver| driver.spec.fs_group_policy.as_deref());
        let ours = match policy.unwrap_or("ReadWriteOnceWithFSType") {
            "File" => true,
            "None" => false,
            _ => {
                let once = spec.access_modes.iter().flatten().any(|mode| mode == "ReadWriteOnce");
                once && source.fs_type.as_deref().is_some_and(|kind| !kind.is_empty())
            }
        };
        if ours && fresh && !by_driver && !read_only {
            self.give_to_group(&target)?;
        }
        Ok(target)
    }

    /// Whether a volume was published before, and need not be again.
    fn is_there(&self, settings: Option<&CSIDriver>, directory: &Path, published: &Published) -> bool {
        settings.and_then(|driver| driver.spec.requires_republish) != Some(true)
            && Published::read(directory).is_ok_and(|before| before == *published)
            && crate::volumes::is_mount_point(&directory.join("mount")).unwrap_or(false)
    }

    fn give_to_group(&self, target: &Path) -> Result<(), CsiError> {
        let Some(group) = self.fs_group else { return Ok(()) };
        if self.group_on_mismatch && ownership::is_given(target, group) {
            return Ok(());
        }
        ownership::give_to_group(target, group, false).map_err(at(target))
    }

    /// Makes a volume that lives and dies with the pod; where it is.
    pub async fn inline(&self, name: &str, source: &CSIVolumeSource) -> Result<PathBuf, CsiError> {
        let driver = self.driver(&source.driver)?;
        let settings = self.settings(&source.driver).await?;
        let meta = &self.pod.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let handle = inline_handle(&text(&meta.namespace), &text(&meta.name), name);
        let directory = record::directory(self.pod_directory, name);
        let target = directory.join("mount");
        let published = Published {
            driver_name: source.driver.clone(),
            volume_handle: handle.clone(),
            volume: name.to_owned(),
            volume_lifecycle_mode: "Ephemeral".to_owned(),
            staging_path: String::new(),
        };
        if self.is_there(settings.as_ref(), &directory, &published) {
            return Ok(target);
        }
        published.write(&directory).map_err(at(&directory))?;
        let fresh = !crate::volumes::is_mount_point(&target).unwrap_or(false);
        let by_driver = driver.can(NodeServiceCapabilityRPCType::VolumeMountGroup);
        let mode = VolumeCapabilityAccessModeMode::SingleNodeWriter;
        let secret = source.node_publish_secret_ref.as_ref().map(|reference| SecretReference {
            name: Some(reference.name.clone()),
            namespace: meta.namespace.clone(),
        });
        let mut volume_context = source.volume_attributes.clone().unwrap_or_default();
        volume_context.extend(self.about_pod(settings.as_ref(), true));
        let asked = NodePublishVolumeRequest {
            volume_id: handle,
            target_path: target.display().to_string(),
            volume_capability: Some(capability(
                source.fs_type.as_ref(),
                None,
                mode,
                self.fs_group.filter(|_| by_driver),
            )),
            readonly: source.read_only == Some(true),
            secrets: self.secret(secret.as_ref()).await?,
            volume_context,
            ..NodePublishVolumeRequest::default()
        };
        let read_only = asked.readonly;
        driver.node().node_publish_volume(within(asked)).await.map_err(call("NodePublishVolume"))?;
        if fresh && !by_driver && !read_only {
            self.give_to_group(&target)?;
        }
        Ok(target)
    }

    /// The node's part of making a volume larger, once the controller has done its own.
    async fn expand(
        &self,
        driver: &Driver,
        volume: &PersistentVolume,
        source: &CSIPersistentVolumeSource,
        claim: &PersistentVolumeClaim,
        target: &Path,
        published: &Published,
    ) -> Result<(), CsiError> {
        let bytes = |list: Option<
            &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
        >| {
            list.and_then(|list| Quantity::parse(&list.get("storage")?.0).ok()).map_or(0, |size| size.value())
        };
        let wanted = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
        let told = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
        if bytes(wanted) <= bytes(told) || bytes(told) == 0 {
            return Ok(());
        }
        if driver.can(NodeServiceCapabilityRPCType::ExpandVolume) {
            let asked = NodeExpandVolumeRequest {
                volume_id: source.volume_handle.clone(),
                volume_path: target.display().to_string(),
                capacity_range: Some(CapacityRange { required_bytes: bytes(wanted), limit_bytes: 0 }),
                staging_target_path: published.staging_path.clone(),
                secrets: self.secret(source.node_expand_secret_ref.as_ref()).await?,
                ..NodeExpandVolumeRequest::default()
            };
            driver.node().node_expand_volume(within(asked)).await.map_err(call("NodeExpandVolume"))?;
        }
        let meta = &claim.metadata;
        let conditions: Vec<_> = claim
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .filter(|condition| !matches!(condition.type_.as_str(), "FileSystemResizePending" | "Resizing"))
            .collect();
        let patch = Patch::Merge(json!({"status": {"capacity": wanted, "conditions": conditions}}));
        let (namespace, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let what = || format!("persistentvolumeclaim {name}");
        self.client
            .patch::<PersistentVolumeClaim>(namespace, name, Some("status"), &patch)
            .await
            .map_err(|source| CsiError::Read { what: what(), source })?;
        Ok(())
    }
}

/// Takes all drivers' volumes of a pod away, and unstages those that no other pod of the node has.
pub async fn unpublish_all(drivers: &Drivers, kubelet: &Path, pod: &Path) -> Result<(), CsiError> {
    for (directory, published) in record::of_pod(pod) {
        let name = &published.driver_name;
        let driver = drivers.find(name).ok_or_else(|| CsiError::NoDriver(name.clone()))?;
        let target = directory.join("mount");
        let asked = NodeUnpublishVolumeRequest {
            volume_id: published.volume_handle.clone(),
            target_path: target.display().to_string(),
        };
        gone_is_fine(driver.node().node_unpublish_volume(within(asked)).await, "NodeUnpublishVolume")?;
        let others = record::in_use(kubelet).into_iter().any(|(other, one)| {
            other != pod
                && (&one.driver_name, &one.volume_handle)
                    == (&published.driver_name, &published.volume_handle)
        });
        if !published.staging_path.is_empty() && !others {
            let asked = NodeUnstageVolumeRequest {
                volume_id: published.volume_handle.clone(),
                staging_target_path: published.staging_path.clone(),
            };
            gone_is_fine(driver.node().node_unstage_volume(within(asked)).await, "NodeUnstageVolume")?;
            let staged = Path::new(&published.staging_path);
            // A driver may leave its directory; a mount that is still there is not removed with it.
            let _ = fs::remove_dir(staged);
            let _ = staged.parent().map(fs::remove_dir);
        }
        let _ = fs::remove_dir(&target);
        fs::remove_file(directory.join("vol_data.json")).map_err(at(&directory))?;
        fs::remove_dir(&directory).map_err(at(&directory))?;
    }
    Ok(())
}

fn gone_is_fine<T>(outcome: Result<T, Status>, name: &'static str) -> Result<(), CsiError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(CsiError::Call { call: name, status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let mode = |names: &[&str]| access_mode(&names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>());
        assert_eq!(
            mode(&["ReadWriteOnce", "ReadOnlyMany"]),
            VolumeCapabilityAccessModeMode::SingleNodeWriter
        );
        assert_eq!(mode(&["ReadWriteMany"]), VolumeCapabilityAccessModeMode::MultiNodeMultiWriter);
        assert_eq!(mode(&["ReadOnlyMany"]), VolumeCapabilityAccessModeMode::MultiNodeReaderOnly);
    }
}
