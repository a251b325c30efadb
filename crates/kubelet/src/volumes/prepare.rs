//! Prepares, refreshes and removes the volumes of a pod.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use client::{Client, ClientError};
use jiff::Timestamp;
use objects::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, ProjectedVolumeSource, Volume,
};

use super::devices::{is_block_device, use_of};
use super::directories::{
    CSI_PLUGIN, LOCAL_PLUGIN, PodDirectories, csi_plugin, plugin, plugin_name, plugin_of_claim,
};
use super::growth::{Failure, Growth, wanted};
use super::local::{LocalDevice, LocalError};
use super::payload::{self, File, Payload, PayloadError};
use super::stats::Measure;
use super::tokens::Tokens;
use super::trust_bundle::{self, BundleError};
use super::{atomic, empty_dir, host_path, local, ownership, sub_path};
use crate::configure::Sources;
use crate::configure::downward::PodFacts;
use crate::csi::{CsiError, Drivers, Publishing};
use crate::events::Recorder;
use crate::lifecycle::qos;
use crate::metrics::{KubeletMetrics, VolumeOperation};

/// Failure to prepare a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{0}")]
    Payload(#[from] PayloadError),
    #[error("{0}")]
    HostPath(String),
    #[error("{path}: {source}")]
    Files { path: PathBuf, source: io::Error },
    #[error("failed to fetch token: {0}")]
    Token(#[source] ClientError),
    #[error("failed to read {what}: {source}")]
    Read { what: String, source: ClientError },
    #[error("persistentvolumeclaim {0:?} is not bound")]
    Unbound(String),
    #[error("volume {volume} has volumeMode {mode}, but is specified in {list}")]
    OtherMode { volume: String, mode: String, list: &'static str },
    #[error("volume {0:?} does not support block mode")]
    NoBlock(String),
    #[error("{0} is not a block device")]
    NoDevice(PathBuf),
    #[error("volume {0:?} has an unsupported type")]
    Unsupported(String),
    #[error(transparent)]
    Driver(#[from] CsiError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("local: {0}")]
    Local(#[from] LocalError),
}

/// A prepared volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedVolume {
    /// Path on the node; empty for an image.
    pub path: PathBuf,
    /// Read-only regardless of the mount.
    pub read_only: bool,
    /// Reference and pull policy of an image volume.
    pub image: Option<(String, String)>,
    /// True for a block device.
    pub device: bool,
    /// Claim of the volume.
    pub claim: Option<String>,
    /// Method of measuring its usage.
    pub measure: Measure,
}

/// Volumes of a pod, by name.
pub type Prepared = BTreeMap<String, PreparedVolume>;

/// Inputs of volume preparation.
pub struct VolumeContext<'a> {
    pub client: &'a Client,
    pub pod: &'a Pod,
    pub directories: &'a PodDirectories,
    pub sources: &'a Sources,
    pub facts: &'a PodFacts<'a>,
    pub tokens: &'a Tokens,
    pub drivers: &'a Drivers,
    pub recorder: &'a Recorder,
    pub metrics: &'a KubeletMetrics,
    /// Root directory of the kubelet.
    pub kubelet: &'a Path,
    pub now: Timestamp,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    |source| VolumeError::Files { path, source }
}

/// Prepares and refreshes every volume that containers use. Idempotent.
pub async fn prepare(context: &VolumeContext<'_>) -> Result<Prepared, (String, VolumeError)> {
    let mut prepared = Prepared::new();
    let volumes = context.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    for volume in volumes {
        let wanted = use_of(context.pod, &volume.name);
        if !wanted.mounted && !wanted.mapped {
            continue;
        }
        let begun = Instant::now();
        let outcome = context.one(volume).await;
        if let Some(plugin) = operation_plugin(volume, &outcome) {
            context.metrics.storage.operated(VolumeOperation::Mount, &plugin, outcome.is_ok(), begun);
        }
        let ready = outcome.map_err(|error| (volume.name.clone(), error))?;
        prepared.insert(volume.name.clone(), ready);
    }
    Ok(prepared)
}

/// Plugin name of a mount, with the driver after a success: a pod can name drivers that do not exist. `None` if the claim
/// was not resolved.
fn operation_plugin(
    volume: &Volume,
    outcome: &Result<PreparedVolume, VolumeError>,
) -> Option<Cow<'static, str>> {
    if let Ok(PreparedVolume { measure: Measure::Driver { driver, .. }, .. }) = outcome {
        return Some(csi_plugin(driver).into());
    }
    let name = plugin_name(volume).or(match outcome {
        Ok(ready) => Some(plugin_of_claim(&ready.measure)),
        Err(VolumeError::Driver(_)) => Some(CSI_PLUGIN),
        Err(VolumeError::Local(_)) => Some(LOCAL_PLUGIN),
        Err(_) => None,
    });
    name.map(Cow::Borrowed)
}

impl VolumeContext<'_> {
    fn fs_group(&self) -> Option<u32> {
        let context = self.pod.spec.as_ref()?.security_context.as_ref()?;
        u32::try_from(context.fs_group?).ok()
    }

    /// Returns true with `fsGroupChangePolicy: OnRootMismatch`.
    fn group_on_mismatch(&self) -> bool {
        let context = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        context.and_then(|context| context.fs_group_change_policy.as_deref()) == Some("OnRootMismatch")
    }

    fn publishing(&self) -> Publishing<'_> {
        Publishing {
            client: self.client,
            drivers: self.drivers,
            tokens: self.tokens,
            recorder: self.recorder,
            node: self.facts.node_name,
            kubelet: self.kubelet,
            pod_directory: &self.directories.root,
            pod: self.pod,
            fs_group: self.fs_group(),
            group_on_mismatch: self.group_on_mismatch(),
            now: self.now,
        }
    }

    /// User common to all containers, if any.
    fn single_user(&self) -> Option<u32> {
        let spec = self.pod.spec.as_ref()?;
        let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
        let mut users =
            spec.init_containers.iter().flatten().chain(&spec.containers).map(|container| {
                container.security_context.as_ref().and_then(|own| own.run_as_user).or(of_pod)
            });
        let first = users.next()??;
        users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
    }

    async fn one(&self, volume: &Volume) -> Result<PreparedVolume, VolumeError> {
        if let Some(source) = &volume.host_path {
            let path = PathBuf::from(&source.path);
            host_path::prepare(&path, source.type_.as_deref().unwrap_or(""))
                .map_err(VolumeError::HostPath)?;
            return Ok(PreparedVolume { path, ..PreparedVolume::default() });
        }
        if let Some(source) = &volume.image {
            let policy = source.pull_policy.clone().unwrap_or_else(|| "IfNotPresent".to_owned());
            let image = Some((source.reference.clone().unwrap_or_default(), policy));
            return Ok(PreparedVolume { image, read_only: true, ..PreparedVolume::default() });
        }
        if let Some(source) = &volume.persistent_volume_claim {
            return self.claim(volume, &source.claim_name, source.read_only == Some(true)).await;
        }
        if volume.ephemeral.is_some() {
            let pod = self.pod.metadata.name.as_deref().unwrap_or("");
            return self.claim(volume, &format!("{pod}-{}", volume.name), false).await;
        }
        if let Some(source) = &volume.csi {
            let publishing = self.publishing();
            let path = publishing.inline(&volume.name, source).await?;
            let handle = publishing.inline_handle(&volume.name);
            return Ok(PreparedVolume {
                path,
                read_only: source.read_only == Some(true),
                measure: Measure::Driver { driver: source.driver.clone(), handle },
                ..PreparedVolume::default()
            });
        }
        let Some(plugin) = plugin(volume) else {
            return Err(VolumeError::Unsupported(volume.name.clone()));
        };
        let path = self.directories.volume(plugin, &volume.name);
        if let Some(source) = &volume.empty_dir {
            let fresh = !path.exists();
            let spec = self.pod.spec.clone().unwrap_or_default();
            let of_node = self.facts.allocatable.and_then(|all| all.get("memory").copied());
            let most = qos::pod_limits(&spec, "memory").into_iter().chain(of_node).min();
            empty_dir::prepare(&path, source, &spec, most.map(|milli| milli / 1000)).map_err(at(&path))?;
            if let Some(group) = self.fs_group().filter(|_| fresh) {
                ownership::apply_fs_group(&path, group, false).map_err(at(&path))?;
            }
            return Ok(PreparedVolume { path, measure: Measure::Files, ..PreparedVolume::default() });
        }
        let files = self.payload(volume).await?;
        let medium = if in_memory(volume) { Medium::Memory } else { Medium::Disk };
        self.write(&path, files, medium)?;
        let measure = Measure::Files;
        Ok(PreparedVolume { path, read_only: true, measure, ..PreparedVolume::default() })
    }

    fn write(&self, path: &Path, files: Payload, medium: Medium) -> Result<(), VolumeError> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(path).map_err(at(path))?;
        if medium == Medium::Memory {
            empty_dir::mount_tmpfs(path).map_err(at(path))?;
        }
        let group = self.fs_group();
        let finish =
            |fresh: &Path| group.map_or(Ok(()), |group| ownership::apply_fs_group(fresh, group, true));
        let changed = atomic::write(path, &files, self.now, finish).map_err(at(path))?;
        if changed {
            let mode = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(path, mode).map_err(at(path))?;
        }
        Ok(())
    }

    async fn payload(&self, volume: &Volume) -> Result<Payload, VolumeError> {
        let mut files = Payload::new();
        if let Some(source) = &volume.config_map {
            let optional = source.optional == Some(true);
            payload::config_map(
                &mut files,
                self.sources,
                &source.name,
                source.items.as_deref(),
                optional,
                source.default_mode,
            )?;
        } else if let Some(source) = &volume.secret {
            let optional = source.optional == Some(true);
            let name = source.secret_name.as_deref().unwrap_or("");
            let items = source.items.as_deref();
            payload::secret(&mut files, self.sources, name, items, optional, source.default_mode)?;
        } else if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            payload::downward_api(&mut files, self.pod, self.facts, items, source.default_mode)?;
        } else if let Some(source) = &volume.projected {
            self.projected(&mut files, source).await?;
        }
        Ok(files)
    }

    async fn projected(
        &self,
        files: &mut Payload,
        source: &ProjectedVolumeSource,
    ) -> Result<(), VolumeError> {
        let default = source.default_mode;
        for part in source.sources.iter().flatten() {
            if let Some(map) = &part.config_map {
                let optional = map.optional == Some(true);
                payload::config_map(files, self.sources, &map.name, map.items.as_deref(), optional, default)?;
            }
            if let Some(secret) = &part.secret {
                let optional = secret.optional == Some(true);
                payload::secret(
                    files,
                    self.sources,
                    &secret.name,
                    secret.items.as_deref(),
                    optional,
                    default,
                )?;
            }
            if let Some(downward) = &part.downward_api {
                let items = downward.items.as_deref().unwrap_or_default();
                payload::downward_api(files, self.pod, self.facts, items, default)?;
            }
            if let Some(token) = &part.service_account_token {
                let life = Some(token.expiration_seconds.unwrap_or(3600));
                let audience = token.audience.as_deref().unwrap_or_default();
                let got = self.tokens.get(self.client, self.pod, audience, life, self.now).await;
                let text = got.map_err(VolumeError::Token)?.text;
                let owner = self.single_user();
                let private = owner.is_some() || self.fs_group().is_some();
                let mode = default.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
                let mode = if private { 0o600 } else { mode };
                files.insert(token.path.clone(), File { content: text.into_bytes(), mode, owner });
            }
            if let Some(bundle) = &part.cluster_trust_bundle {
                let mode = default.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
                let content = trust_bundle::certificates(self.client, bundle).await?;
                files.insert(bundle.path.clone(), File { content, mode, owner: None });
            }
        }
        Ok(())
    }

    /// Volume of a claim, if it is local to this node.
    async fn claim(
        &self,
        volume: &Volume,
        name: &str,
        read_only: bool,
    ) -> Result<PreparedVolume, VolumeError> {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or("");
        let read = |what: String| move |source| VolumeError::Read { what, source };
        let claim: PersistentVolumeClaim =
            self.client.get(namespace, name).await.map_err(read(format!("persistentvolumeclaim {name}")))?;
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|_| bound);
        let Some(bound_to) = bound_to else { return Err(VolumeError::Unbound(name.to_owned())) };
        let found: PersistentVolume =
            self.client.get("", &bound_to).await.map_err(read(format!("persistentvolume {bound_to}")))?;
        let spec = found.spec.clone().unwrap_or_default();
        let device = self.is_device(&volume.name, &spec)?;
        let claimed =
            PreparedVolume { read_only, device, claim: Some(name.to_owned()), ..PreparedVolume::default() };
        if let Some(source) = objects::csi_migration::csi_source(&found) {
            let source = &*source;
            let read_only = read_only || source.read_only == Some(true);
            let path = self.publishing().persistent(&found, source, &claim, read_only).await?;
            let (driver, handle) = (source.driver.clone(), source.volume_handle.clone());
            return Ok(PreparedVolume {
                path,
                read_only,
                measure: Measure::Driver { driver, handle },
                ..claimed
            });
        }
        if let Some(source) = spec.host_path.as_ref().filter(|_| !device) {
            let path = PathBuf::from(&source.path);
            host_path::prepare(&path, source.type_.as_deref().unwrap_or(""))
                .map_err(VolumeError::HostPath)?;
            return Ok(PreparedVolume { path, ..claimed });
        }
        if spec.local.is_none() {
            let kind = if device { VolumeError::NoBlock } else { VolumeError::Unsupported };
            return Err(kind(bound_to));
        }
        self.local(&found, &claim, claimed).await
    }

    /// A directory or block device of the node.
    async fn local(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
        claimed: PreparedVolume,
    ) -> Result<PreparedVolume, VolumeError> {
        let spec = volume.spec.clone().unwrap_or_default();
        let source = spec.local.unwrap_or_default();
        let path = PathBuf::from(&source.path);
        if !path.exists() {
            return Err(VolumeError::HostPath(format!("path {:?} does not exist", source.path)));
        }
        if claimed.device {
            if !is_block_device(&path) {
                return Err(VolumeError::NoDevice(path));
            }
            self.expand_local(volume, claim, None).await?;
            return Ok(PreparedVolume { path, measure: Measure::Device, ..claimed });
        }
        let mut mounted = path.clone();
        if is_block_device(&path) {
            let device = LocalDevice {
                volume: volume.metadata.name.clone().unwrap_or_default(),
                device: path.clone(),
                fs_type: source.fs_type.unwrap_or_default(),
                options: spec.mount_options.unwrap_or_default(),
                read_only: claimed.read_only,
            };
            let (kubelet, directories) = (self.kubelet.to_owned(), self.directories.clone());
            mounted = blocking(move || device.mount(&kubelet, &directories)).await?;
            self.expand_local(volume, claim, Some((path, mounted.clone()))).await?;
        } else if path.is_dir() {
            self.expand_local(volume, claim, None).await?;
        } else {
            return Err(LocalError::Kind.into());
        }
        let once = self.group_on_mismatch();
        if let Some(group) =
            self.fs_group().filter(|group| !(once && ownership::has_fs_group(&mounted, *group)))
        {
            ownership::apply_fs_group(&mounted, group, false).map_err(at(&mounted))?;
        }
        Ok(PreparedVolume { path: mounted, measure: Measure::FileSystem, ..claimed })
    }

    /// Expands the file system of a local volume if required; `device` is its device and mount point. For a directory
    /// or a device without a file system only the size is recorded.
    async fn expand_local(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
        device: Option<(PathBuf, PathBuf)>,
    ) -> Result<(), VolumeError> {
        if wanted(volume, claim).is_none() {
            return Ok(());
        }
        let VolumeContext { client, recorder, pod, now, .. } = *self;
        let growth = Growth { client, recorder, pod, node: self.facts.node_name, now };
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let written = |source| VolumeError::Read { what: format!("persistentvolumeclaim {name}"), source };
        growth.begin(claim).await.map_err(written)?;
        if let Some((device, mounted)) = device
            && let Err(error) = blocking(move || local::resize(&device, &mounted)).await
        {
            // The volume remains usable at its old size.
            return growth.fail(volume, claim, &error.to_string(), Failure::Retry).await.map_err(written);
        }
        growth.succeed(volume, claim).await.map_err(written)
    }

    /// Returns true if the pod uses the volume as a block device; the volume mode has to match.
    fn is_device(&self, name: &str, volume: &PersistentVolumeSpec) -> Result<bool, VolumeError> {
        let mode = volume.volume_mode.as_deref().unwrap_or("Filesystem");
        let (device, wanted) = (mode == "Block", use_of(self.pod, name));
        let list = match (device, wanted.mounted, wanted.mapped) {
            (true, true, _) => "volumeMounts",
            (false, _, true) => "volumeDevices",
            _ => return Ok(device),
        };
        Err(VolumeError::OtherMode { volume: name.to_owned(), mode: mode.to_owned(), list })
    }
}

/// Runs blocking programs of the node on a separate thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LocalError> + Send + 'static,
) -> Result<T, LocalError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(LocalError::Files { path: PathBuf::new(), source: io::Error::other(error) }),
    }
}

/// Content directory of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Disk,
    Memory,
}

/// Reports whether the files of a volume are kept in memory, as Kubernetes does for all but config maps.
fn in_memory(volume: &Volume) -> bool {
    volume.secret.is_some() || volume.projected.is_some() || volume.downward_api.is_some()
}

/// Unmounts subpath mounts of a pod.
pub fn release_parts(directories: &PodDirectories) -> io::Result<()> {
    sub_path::release_all(&directories.sub_paths())
}

/// Removes all files of a pod except its directory, which marks the pod until everything else is gone. Unmounts
/// first, so that no content of a mount is removed.
pub fn tear_down(kubelet: &Path, directories: &PodDirectories) -> io::Result<()> {
    release_parts(directories)?;
    local::release(kubelet, directories)?;
    for plugin in ["empty-dir", "secret", "projected", "downward-api"] {
        let volumes = directories.root.join("volumes").join(format!("kubernetes.io~{plugin}"));
        for entry in std::fs::read_dir(&volumes).into_iter().flatten().flatten() {
            if sys::mounts::is_mount_point(&entry.path())? {
                rustix::mount::unmount(entry.path(), rustix::mount::UnmountFlags::DETACH)?;
            }
        }
    }
    let entries = match std::fs::read_dir(&directories.root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(source: &str) -> Volume {
        serde_json::from_value(serde_json::json!({"name": "v", source: {}})).expect("a volume")
    }

    #[test]
    fn secret_and_projected_volumes_are_in_memory() {
        for (source, wanted) in
            [("secret", true), ("projected", true), ("downwardAPI", true), ("configMap", false)]
        {
            assert_eq!(in_memory(&volume(source)), wanted, "{source}");
        }
    }

    /// Searches for a marker of a Secret below the pod's directory on disk, before and after the pod is deleted.
    #[test]
    fn secret_volume_mounted_and_deleted_leaves_nothing_on_disk() {
        const MARKER: &str = "marker-5b1f";
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        let kubelet = tempfile::tempdir().expect("a directory");
        let below = kubelet.path().to_owned();
        let seen = std::thread::spawn(move || {
            use sys::mounts::{MountPropagationFlags, propagate};
            sys::process::unshare(&[sys::process::Namespace::Mount]).expect("a mount namespace");
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            propagate(Path::new("/"), private).expect("private mounts");
            let directories = PodDirectories::of_uid(&below, "uid");
            let path = directories.volume("secret", "v");
            std::fs::create_dir_all(&path).expect("a directory");
            empty_dir::mount_tmpfs(&path).expect("mounted");
            empty_dir::mount_tmpfs(&path).expect("mounted once");
            let file = File { content: MARKER.as_bytes().to_vec(), mode: 0o644, owner: None };
            let files = Payload::from([("key".to_owned(), file)]);
            atomic::write(&path, &files, Timestamp::UNIX_EPOCH, |_| Ok(())).expect("written");
            let read = std::fs::read_to_string(path.join("key")).expect("the file");
            // Content below the mounts, which is on the disk.
            let bare = tempfile::tempdir().expect("a directory");
            sys::mounts::bind(&below, bare.path(), false).expect("bound");
            let mounted = disk_contains(bare.path(), MARKER);
            tear_down(&below, &directories).expect("torn down");
            let deleted = disk_contains(bare.path(), MARKER);
            sys::mounts::unmount(bare.path()).expect("unmounted");
            (read, mounted, deleted, directories.root.join("volumes").exists())
        })
        .join()
        .expect("the thread");
        assert_eq!(seen, (MARKER.to_owned(), false, false, false));
        assert!(!disk_contains(kubelet.path(), MARKER));
    }

    fn disk_contains(directory: &Path, marker: &str) -> bool {
        std::fs::read_dir(directory).into_iter().flatten().flatten().any(|entry| {
            let kind = entry.file_type().expect("a type");
            if kind.is_dir() {
                disk_contains(&entry.path(), marker)
            } else {
                kind.is_file()
                    && std::fs::read(entry.path())
                        .is_ok_and(|found| String::from_utf8_lossy(&found).contains(marker))
            }
        })
    }
}
