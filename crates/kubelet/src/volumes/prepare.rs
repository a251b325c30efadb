//! Makes the volumes of a pod ready, brings them up to date, and removes them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use client::{Client, ClientError};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, Pod, ProjectedVolumeSource, ServiceAccountTokenProjection,
    Volume,
};
use parking_lot::Mutex;

use super::directories::{PodDirectories, plugin};
use super::payload::{self, File, Payload, PayloadError};
use super::trust_bundle::{self, BundleError};
use super::{atomic, empty_dir, host_path, ownership, sub_path};
use crate::configure::Sources;
use crate::configure::downward::PodFacts;
use crate::csi::{CsiError, Drivers, Publishing};
use crate::lifecycle::qos;

/// Why a volume is not ready.
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
    #[error("reading {what}: {source}")]
    Read { what: String, source: ClientError },
    #[error("persistentvolumeclaim {0:?} is not bound")]
    Unbound(String),
    #[error("volume {0:?} is of a kind that this node does not support")]
    Unsupported(String),
    #[error(transparent)]
    Driver(#[from] CsiError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// A volume that is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedVolume {
    /// Where it is on the node; empty for an image.
    pub path: PathBuf,
    /// It must not be written to, whatever the mount says.
    pub read_only: bool,
    /// The image it is made of, and when to pull that.
    pub image: Option<(String, String)>,
}

/// The volumes of a pod, by name.
pub type Prepared = BTreeMap<String, PreparedVolume>;

/// Tokens of service accounts, kept until they are due for renewal.
#[derive(Debug, Default)]
pub struct Tokens {
    cache: Mutex<HashMap<(String, String, i64), Token>>,
}

#[derive(Clone, Debug)]
struct Token {
    text: String,
    renew_at: Timestamp,
}

/// What preparing volumes needs.
pub struct Context<'a> {
    pub client: &'a Client,
    pub pod: &'a Pod,
    pub directories: &'a PodDirectories,
    pub sources: &'a Sources,
    pub facts: &'a PodFacts<'a>,
    pub tokens: &'a Tokens,
    pub drivers: &'a Drivers,
    /// The kubelet's own directory.
    pub kubelet: &'a Path,
    pub now: Timestamp,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    |source| VolumeError::Files { path, source }
}

/// Makes every volume ready and current. Called again, it changes only what is not.
pub async fn prepare(context: &Context<'_>) -> Result<Prepared, (String, VolumeError)> {
    let mut prepared = Prepared::new();
    let volumes = context.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    for volume in volumes {
        let ready = context.one(volume).await.map_err(|error| (volume.name.clone(), error))?;
        prepared.insert(volume.name.clone(), ready);
    }
    Ok(prepared)
}

impl Context<'_> {
    fn fs_group(&self) -> Option<u32> {
        let context = self.pod.spec.as_ref()?.security_context.as_ref()?;
        u32::try_from(context.fs_group?).ok()
    }

    /// Whether files are given to the group only if the top is not its own already.
    fn group_on_mismatch(&self) -> bool {
        let context = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        context.and_then(|context| context.fs_group_change_policy.as_deref()) == Some("OnRootMismatch")
    }

    fn publishing(&self) -> Publishing<'_> {
        Publishing {
            client: self.client,
            drivers: self.drivers,
            node: self.facts.node_name,
            kubelet: self.kubelet,
            pod_directory: &self.directories.root,
            pod: self.pod,
            fs_group: self.fs_group(),
            group_on_mismatch: self.group_on_mismatch(),
        }
    }

    /// The user that all containers run as, if it is the same.
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
            return self.claim(&source.claim_name, source.read_only == Some(true)).await;
        }
        if volume.ephemeral.is_some() {
            let pod = self.pod.metadata.name.as_deref().unwrap_or("");
            return self.claim(&format!("{pod}-{}", volume.name), false).await;
        }
        if let Some(source) = &volume.csi {
            let path = self.publishing().inline(&volume.name, source).await?;
            return Ok(PreparedVolume { path, read_only: source.read_only == Some(true), image: None });
        }
        let Some(plugin) = plugin(volume) else {
            return Err(VolumeError::Unsupported(volume.name.clone()));
        };
        let path = self.directories.volume(plugin, &volume.name);
        if let Some(source) = &volume.empty_dir {
            let fresh = !path.exists();
            let memory = self.pod.spec.as_ref().and_then(|spec| qos::pod_limits(spec, "memory"));
            empty_dir::prepare(&path, source, memory.map(|milli| milli / 1000)).map_err(at(&path))?;
            if let Some(group) = self.fs_group().filter(|_| fresh) {
                ownership::give_to_group(&path, group, false).map_err(at(&path))?;
            }
            return Ok(PreparedVolume { path, ..PreparedVolume::default() });
        }
        let files = self.payload(volume).await?;
        self.write(&path, files)?;
        Ok(PreparedVolume { path, read_only: true, image: None })
    }

    fn write(&self, path: &Path, files: Payload) -> Result<(), VolumeError> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(path).map_err(at(path))?;
        let group = self.fs_group();
        let finish =
            |fresh: &Path| group.map_or(Ok(()), |group| ownership::give_to_group(fresh, group, true));
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
                let text = self.token(token).await?;
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

    async fn token(&self, source: &ServiceAccountTokenProjection) -> Result<String, VolumeError> {
        let meta = &self.pod.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let audience = text(&source.audience);
        let seconds = source.expiration_seconds.unwrap_or(3600);
        let key = (text(&meta.uid), audience.clone(), seconds);
        if let Some(token) = self.tokens.cache.lock().get(&key).filter(|token| self.now < token.renew_at) {
            return Ok(token.text.clone());
        }
        let account = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.clone())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "default".to_owned());
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: (!audience.is_empty()).then(|| vec![audience]),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                }),
            }),
            ..TokenRequest::default()
        };
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", text(&meta.namespace));
        let answer: TokenRequest = self.client.post(&path, &request).await.map_err(VolumeError::Token)?;
        let status = answer.status.unwrap_or_default();
        // Renewed after four fifths of its life, or a day if that is earlier.
        let ends = status.expiration_timestamp.map_or(self.now, |time| time.0);
        let life = ends.duration_since(self.now);
        let life = (life * 4 / 5).min(SignedDuration::from_hours(24));
        let renew_at = self.now.saturating_add(life).unwrap_or(self.now);
        let token = Token { text: status.token.unwrap_or_default(), renew_at };
        self.tokens.cache.lock().insert(key, token.clone());
        Ok(token.text)
    }

    /// A claim's volume, if it is one that lives on this node.
    async fn claim(&self, name: &str, read_only: bool) -> Result<PreparedVolume, VolumeError> {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or("");
        let read = |what: String| move |source| VolumeError::Read { what, source };
        let claim: PersistentVolumeClaim =
            self.client.get(namespace, name).await.map_err(read(format!("persistentvolumeclaim {name}")))?;
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|_| bound);
        let Some(volume) = volume else { return Err(VolumeError::Unbound(name.to_owned())) };
        let found: PersistentVolume =
            self.client.get("", &volume).await.map_err(read(format!("persistentvolume {volume}")))?;
        let spec = found.spec.clone().unwrap_or_default();
        if let Some(source) = &spec.csi {
            let path = self.publishing().persistent(&found, source, &claim, read_only).await?;
            return Ok(PreparedVolume { path, read_only, image: None });
        }
        let (path, own) = if let Some(source) = &spec.host_path {
            let path = PathBuf::from(&source.path);
            host_path::prepare(&path, source.type_.as_deref().unwrap_or(""))
                .map_err(VolumeError::HostPath)?;
            (path, false)
        } else if let Some(source) = &spec.local {
            let path = PathBuf::from(&source.path);
            if !path.exists() {
                return Err(VolumeError::HostPath(format!("path {:?} does not exist", source.path)));
            }
            (path, true)
        } else {
            return Err(VolumeError::Unsupported(volume));
        };
        let once = self.group_on_mismatch();
        if let Some(group) =
            self.fs_group().filter(|group| own && !(once && ownership::is_given(&path, *group)))
        {
            ownership::give_to_group(&path, group, false).map_err(at(&path))?;
        }
        Ok(PreparedVolume { path, read_only, image: None })
    }
}

impl Tokens {
    /// When a token of the pod is due for renewal.
    pub fn renewal(&self, uid: &str) -> Option<Timestamp> {
        self.cache.lock().iter().filter(|(key, _)| key.0 == uid).map(|(_, token)| token.renew_at).min()
    }

    pub fn forget(&self, uid: &str) {
        self.cache.lock().retain(|key, _| key.0 != uid);
    }
}

/// Unmounts what is mounted of parts of a pod's volumes.
pub fn release_parts(directories: &PodDirectories) -> io::Result<()> {
    sub_path::release_all(&directories.sub_paths())
}

/// Removes everything of a pod from the node but its directory, which says that the pod was here until nothing else does.
/// Mounts go first: nothing within them may be removed with the rest.
pub fn tear_down(directories: &PodDirectories) -> io::Result<()> {
    release_parts(directories)?;
    let in_memory = directories.root.join("volumes/kubernetes.io~empty-dir");
    if let Ok(entries) = std::fs::read_dir(&in_memory) {
        for entry in entries.flatten() {
            if empty_dir::is_mount_point(&entry.path())? {
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
