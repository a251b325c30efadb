//! Stages a CSI volume on the node and publishes it to a pod, as a file system or block device.

use std::fs;
use std::path::{Path, PathBuf};

use client::Client;
use cri::csi::{
    NodePublishVolumeRequest, NodeServiceCapabilityRPCType, NodeStageVolumeRequest, VolumeCapability,
};
use jiff::Timestamp;
use objects::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, SecretReference,
};
use objects::storage::v1::CSIDriver;
use sha2::{Digest, Sha256};
use sys::mounts::is_mount_point;

use super::call_context::{StringMap, about_pod, check_mode};
use super::capability::{CapabilityRequest, applies_fs_group};
use super::driver::{Driver, Drivers, within};
use super::expand::Expansion;
use super::record::{self, Published};
use super::{CsiError, at, call, inline_handle};
use crate::events::Recorder;
use crate::volumes::{Tokens, is_block_device, ownership};

const STAGE: &str = "NodeStageVolume";
const PUBLISH: &str = "NodePublishVolume";

/// Inputs of a publish operation.
pub struct Publishing<'a> {
    pub client: &'a Client,
    pub drivers: &'a Drivers,
    pub tokens: &'a Tokens,
    pub recorder: &'a Recorder,
    pub node: &'a str,
    /// Directories of the kubelet and of the pod.
    pub kubelet: &'a Path,
    pub pod_directory: &'a Path,
    pub pod: &'a Pod,
    pub fs_group: Option<u32>,
    /// With `OnRootMismatch`, ownership is changed only if the root directory differs.
    pub group_on_mismatch: bool,
    pub now: Timestamp,
}

/// Node-wide staging and device paths of CSI volumes.
struct NodePaths(PathBuf);

impl NodePaths {
    fn new(kubelet: &Path) -> Self {
        Self(kubelet.join("plugins/kubernetes.io/csi"))
    }

    fn staging(&self, driver: &str, handle: &str) -> PathBuf {
        self.0.join(driver).join(hex::encode(Sha256::digest(handle))).join("globalmount")
    }

    fn device_staging(&self, volume: &str) -> PathBuf {
        self.0.join("volumeDevices/staging").join(volume)
    }

    /// Device paths are outside of the pod directory, so that its removal never touches a device.
    fn device(&self, volume: &str, pod: &str) -> PathBuf {
        self.0.join("volumeDevices/publish").join(volume).join(pod)
    }
}

impl Publishing<'_> {
    fn driver(&self, name: &str) -> Result<Driver, CsiError> {
        self.drivers.find(name).ok_or_else(|| CsiError::NoDriver(name.to_owned()))
    }

    /// Publishes a persistent volume to the pod and returns its path.
    pub async fn persistent(
        &self,
        volume: &PersistentVolume,
        source: &CSIPersistentVolumeSource,
        claim: &PersistentVolumeClaim,
        read_only: bool,
    ) -> Result<PathBuf, CsiError> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let spec = volume.spec.clone().unwrap_or_default();
        let block = spec.volume_mode.as_deref() == Some("Block");
        let driver = self.driver(&source.driver)?;
        let settings = self.settings(&source.driver).await?;
        check_mode(settings.as_ref(), &source.driver, "Persistent")?;
        let context = self.attachment(settings.as_ref(), &source.driver, &source.volume_handle).await?;
        let modes = spec.access_modes.unwrap_or_default();
        let wanted = CapabilityRequest {
            fs_type: source.fs_type.as_ref(),
            mount_flags: spec.mount_options.as_deref().unwrap_or_default(),
            modes: &modes,
            group: self.fs_group,
        };
        let capability = if block { wanted.raw(&driver) } else { wanted.mounted(&driver) };
        let directory = record::directory(self.pod_directory, &name);
        let published = self.planned(&driver, source, &name, block);
        let target = published.target(&directory);
        let expansion = Expansion {
            driver: &driver,
            volume,
            source,
            claim,
            capability: &capability,
            target: &target,
            published: &published,
        };
        let _lock = self.drivers.lock_volume(&source.driver, &source.volume_handle).await;
        if self.is_there(settings.as_ref(), &directory, &published) {
            if let Err(error) = self.expand(&expansion).await {
                tracing::warn!(volume = name, %error, "failed to expand volume");
            }
            return Ok(target);
        }
        // Recorded first, so that a half-published volume can be cleaned up.
        published.write(&directory).map_err(at(&directory))?;
        if !published.staging_path.is_empty() {
            self.stage(&driver, source, &published, &capability, &context).await?;
        }
        let mut volume_context = source.volume_attributes.clone().unwrap_or_default();
        volume_context.extend(about_pod(self.pod, settings.as_ref(), false));
        let mut secrets = self.secret(source.node_publish_secret_ref.as_ref()).await?;
        if block {
            let parent = target.parent().unwrap_or(&target);
            fs::create_dir_all(parent).map_err(at(parent))?;
        } else {
            let (words, more_secrets) = self.tokens(settings.as_ref()).await?;
            volume_context.extend(words);
            secrets.extend(more_secrets);
        }
        let request = NodePublishVolumeRequest {
            volume_id: source.volume_handle.clone(),
            publish_context: context,
            staging_target_path: published.staging_path.clone(),
            target_path: target.display().to_string(),
            volume_capability: Some(capability.clone()),
            readonly: read_only,
            secrets,
            volume_context,
        };
        driver
            .call(PUBLISH, driver.node().node_publish_volume(within(request)))
            .await
            .map_err(call(PUBLISH))?;
        if block && !is_block_device(&target) {
            return Err(CsiError::NoDevice(target));
        }
        self.expand(&expansion).await?;
        if !block && !read_only && applies_fs_group(settings.as_ref(), source.fs_type.as_ref(), &modes) {
            self.apply_fs_group(&driver, &target)?;
        }
        Ok(target)
    }

    /// Record of a volume, written before it is published.
    fn planned(
        &self,
        driver: &Driver,
        source: &CSIPersistentVolumeSource,
        volume: &str,
        block: bool,
    ) -> Published {
        let paths = NodePaths::new(self.kubelet);
        let staging = if block {
            paths.device_staging(volume)
        } else {
            paths.staging(&source.driver, &source.volume_handle)
        };
        let stages = driver.can(NodeServiceCapabilityRPCType::StageUnstageVolume);
        let device = paths.device(volume, self.pod.metadata.uid.as_deref().unwrap_or_default());
        Published {
            driver_name: source.driver.clone(),
            volume_handle: source.volume_handle.clone(),
            volume: volume.to_owned(),
            volume_lifecycle_mode: "Persistent".to_owned(),
            staging_path: if stages { staging.display().to_string() } else { String::new() },
            target_path: if block { device.display().to_string() } else { String::new() },
        }
    }

    async fn stage(
        &self,
        driver: &Driver,
        source: &CSIPersistentVolumeSource,
        published: &Published,
        capability: &VolumeCapability,
        context: &StringMap,
    ) -> Result<(), CsiError> {
        let staging = Path::new(&published.staging_path);
        fs::create_dir_all(staging).map_err(at(staging))?;
        let request = NodeStageVolumeRequest {
            volume_id: source.volume_handle.clone(),
            publish_context: context.clone(),
            staging_target_path: published.staging_path.clone(),
            volume_capability: Some(capability.clone()),
            secrets: self.secret(source.node_stage_secret_ref.as_ref()).await?,
            volume_context: source.volume_attributes.clone().unwrap_or_default(),
        };
        driver.call(STAGE, driver.node().node_stage_volume(within(request))).await.map_err(call(STAGE))?;
        Ok(())
    }

    /// Returns true if the volume is already published.
    fn is_there(&self, settings: Option<&CSIDriver>, directory: &Path, published: &Published) -> bool {
        let again = settings.and_then(|driver| driver.spec.requires_republish) == Some(true);
        let target = published.target(directory);
        let there = if published.is_block() {
            is_block_device(&target)
        } else {
            !again && is_mount_point(&target).unwrap_or(false)
        };
        there && Published::read(directory).is_ok_and(|before| before == *published)
    }

    /// Applies the pod's fsGroup, unless the driver does.
    fn apply_fs_group(&self, driver: &Driver, target: &Path) -> Result<(), CsiError> {
        let by_driver = driver.can(NodeServiceCapabilityRPCType::VolumeMountGroup);
        let Some(group) = self.fs_group.filter(|_| !by_driver) else { return Ok(()) };
        if self.group_on_mismatch && ownership::has_fs_group(target, group) {
            return Ok(());
        }
        ownership::apply_fs_group(target, group, false).map_err(at(target))
    }

    /// Handle of an ephemeral inline volume.
    pub fn inline_handle(&self, name: &str) -> String {
        let meta = &self.pod.metadata;
        let text = |text: &'_ Option<String>| text.clone().unwrap_or_default();
        inline_handle(&text(&meta.namespace), &text(&meta.name), name)
    }

    /// Publishes an ephemeral inline volume to the pod and returns its path.
    pub async fn inline(&self, name: &str, source: &CSIVolumeSource) -> Result<PathBuf, CsiError> {
        let driver = self.driver(&source.driver)?;
        let settings = self.settings(&source.driver).await?;
        check_mode(settings.as_ref(), &source.driver, "Ephemeral")?;
        let handle = self.inline_handle(name);
        let directory = record::directory(self.pod_directory, name);
        let published = Published {
            driver_name: source.driver.clone(),
            volume_handle: handle.clone(),
            volume: name.to_owned(),
            volume_lifecycle_mode: "Ephemeral".to_owned(),
            ..Published::default()
        };
        let target = published.target(&directory);
        let _lock = self.drivers.lock_volume(&source.driver, &handle).await;
        if self.is_there(settings.as_ref(), &directory, &published) {
            return Ok(target);
        }
        published.write(&directory).map_err(at(&directory))?;
        let modes = ["ReadWriteOnce".to_owned()];
        let wanted = CapabilityRequest {
            fs_type: source.fs_type.as_ref(),
            mount_flags: &[],
            modes: &modes,
            group: self.fs_group,
        };
        let secret = source.node_publish_secret_ref.as_ref().map(|reference| SecretReference {
            name: Some(reference.name.clone()),
            namespace: self.pod.metadata.namespace.clone(),
        });
        let mut secrets = self.secret(secret.as_ref()).await?;
        let mut volume_context = source.volume_attributes.clone().unwrap_or_default();
        volume_context.extend(about_pod(self.pod, settings.as_ref(), true));
        let (words, more_secrets) = self.tokens(settings.as_ref()).await?;
        volume_context.extend(words);
        secrets.extend(more_secrets);
        let read_only = source.read_only == Some(true);
        let request = NodePublishVolumeRequest {
            volume_id: handle,
            target_path: target.display().to_string(),
            volume_capability: Some(wanted.mounted(&driver)),
            readonly: read_only,
            secrets,
            volume_context,
            ..NodePublishVolumeRequest::default()
        };
        driver
            .call(PUBLISH, driver.node().node_publish_volume(within(request)))
            .await
            .map_err(call(PUBLISH))?;
        if !read_only && applies_fs_group(settings.as_ref(), source.fs_type.as_ref(), &modes) {
            self.apply_fs_group(&driver, &target)?;
        }
        Ok(target)
    }
}
