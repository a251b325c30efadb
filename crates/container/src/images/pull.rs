//! Pulls images into the store. Several layers are downloaded concurrently and unpacked in order while later ones are
//! still downloading; an image is stored completely or not at all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::store::Archive;
use super::{BadReference, Descriptor, ImageConfig, ImageStore, Manifest, Reference, StoreError, is_digest};
use crate::registry::{
    Blob, Credentials, HostsError, Progress, Registries, RegistryError, Source, Timeouts, connections,
};

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("failed to parse image name: {0}")]
    Name(#[from] BadReference),
    #[error(transparent)]
    Hosts(#[from] HostsError),
    #[error("failed to resolve reference {0:?}: {0}: not found")]
    NotFound(String),
    #[error("failed to resolve reference {name:?}: {source}")]
    Resolve { name: String, source: RegistryError },
    #[error("failed to resolve reference {name:?}: {}", by_host(.failures))]
    AllSources { name: String, failures: Vec<(String, String)> },
    #[error("failed to copy: {what} {digest}: {source}")]
    Blob { what: &'static str, digest: String, source: RegistryError },
    #[error("no match for platform in manifest: not found")]
    Platform,
    #[error("{what} {digest} is not valid: {reason}")]
    Document { what: &'static str, digest: String, reason: String },
    #[error("media type {0:?} is not supported")]
    MediaType(String),
    #[error("no space left on device: the image needs {needed} bytes, {free} are free")]
    NoSpace { needed: u64, free: u64 },
    #[error("failed to extract layer: {0}")]
    Store(#[from] StoreError),
    #[error("failed to prepare the download: {0}")]
    Prepare(#[from] std::io::Error),
    #[error("download interrupted")]
    Interrupted,
}

/// Failures by host: `mirror: connection refused; registry: unauthorized`.
fn by_host(failures: &[(String, String)]) -> String {
    failures.iter().map(|(host, error)| format!("{host}: {error}")).collect::<Vec<_>>().join("; ")
}

impl PullError {
    /// True if the registry has no such image.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_) | Self::Platform)
    }
}

/// Concurrent layer downloads.
const MAX_CONCURRENT_DOWNLOADS: usize = 3;
/// Size limit that registries apply to manifests.
const LARGEST_MANIFEST: usize = 4 << 20;
const LARGEST_CONFIG: u64 = 16 << 20;
/// Nesting limit of indexes.
const MAX_INDEX_DEPTH: usize = 3;

/// One pull.
pub struct Puller {
    pub store: Arc<ImageStore>,
    pub registries: Registries,
    pub credentials: Option<Credentials>,
    pub timeouts: Timeouts,
    pub progress: Arc<Progress>,
}

/// A directory that is removed on drop.
struct TempDirectory(PathBuf);

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Content of the manifest to pull.
struct PullPlan {
    /// Digest that the name resolves to: the index's, if it is one.
    digest: String,
    config: Vec<u8>,
    parsed: ImageConfig,
    layers: Vec<Descriptor>,
}

impl Puller {
    /// Pulls an image and returns its id.
    pub async fn pull(&self, name: &str) -> Result<String, PullError> {
        let reference = Reference::parse(name)?;
        let endpoints = self.registries.endpoints(&reference.registry)?;
        let open = connections(self.timeouts, &endpoints);
        let mut sources: Vec<Source> = endpoints
            .into_iter()
            .map(|endpoint| Source::new(endpoint, &reference.repository, self.credentials.as_ref(), &open))
            .collect();
        let directory = TempDirectory(self.store.downloads()?);
        let (at, manifest) = self.resolve(&reference, &sources).await?;
        // The source that had the manifest is tried first for the rest.
        sources.rotate_left(at);
        let digest = digest_of(&manifest);
        let tag = reference.digest.is_none().then(|| reference.to_string());
        let known = self.store.find(&reference.with_digest(&digest)).map(|image| image.id);
        if let Some(id) = known
            && self.store.name(&id, tag.clone(), reference.with_digest(&digest))?
        {
            return Ok(id);
        }
        let plan = self.plan(digest, manifest, &sources, &directory).await?;
        self.fetch(plan, &reference, tag, sources, directory).await
    }

    /// Fetches the manifest; also returns the index of the source that had it.
    async fn resolve(
        &self,
        reference: &Reference,
        sources: &[Source],
    ) -> Result<(usize, Vec<u8>), PullError> {
        let wanted = reference.digest.as_deref().or(reference.tag.as_deref()).unwrap_or("latest");
        let mut outcome = Err(PullError::NotFound(reference.to_string()));
        let mut failures = Vec::new();
        for (at, source) in sources.iter().enumerate() {
            let checked = source.manifest(wanted, LARGEST_MANIFEST).await.and_then(|bytes| {
                let found = digest_of(&bytes);
                match &reference.digest {
                    Some(wanted) if found != *wanted => {
                        Err(RegistryError::Digest { found, wanted: wanted.clone() })
                    }
                    _ => Ok(bytes),
                }
            });
            if let Err(error) = &checked {
                failures.push((source.host(), error.to_string()));
            }
            match checked {
                Ok(bytes) => return Ok((at, bytes)),
                Err(RegistryError::NotFound) => outcome = Err(PullError::NotFound(reference.to_string())),
                Err(source) => outcome = Err(PullError::Resolve { name: reference.to_string(), source }),
            }
            if let Err(error) = &outcome {
                tracing::debug!(%error, host = source.host(), "failed to fetch manifest");
            }
        }
        // The reasons of a mirror and of the registry itself differ; a missing image is missing everywhere.
        if failures.len() > 1 && !matches!(outcome, Err(PullError::NotFound(_))) {
            return Err(PullError::AllSources { name: reference.to_string(), failures });
        }
        outcome
    }

    async fn plan(
        &self,
        digest: String,
        mut manifest: Vec<u8>,
        sources: &[Source],
        directory: &TempDirectory,
    ) -> Result<PullPlan, PullError> {
        let mut at = digest.clone();
        for _ in 0..MAX_INDEX_DEPTH {
            let parsed: Manifest = parse("manifest", &at, &manifest)?;
            let Some(config) = &parsed.config else {
                if parsed.manifests.is_empty() {
                    return Err(PullError::MediaType(parsed.media_type));
                }
                let chosen = parsed.for_this_machine().ok_or(PullError::Platform)?;
                at = checked(chosen)?.digest.clone();
                manifest = self.document("manifest", sources, chosen, directory).await?;
                continue;
            };
            for layer in &parsed.layers {
                if !is_layer(&checked(layer)?.media_type) {
                    return Err(PullError::MediaType(layer.media_type.clone()));
                }
            }
            let bytes = self.document("config", sources, checked(config)?, directory).await?;
            let config: ImageConfig = parse("config", &config.digest, &bytes)?;
            let foreign = |found: &str, own: &str| !found.is_empty() && found != own;
            if foreign(&config.os, "linux") || foreign(&config.architecture, super::ARCHITECTURE) {
                return Err(PullError::Platform);
            }
            let (layers, named) = (parsed.layers.len(), config.rootfs.diff_ids.len());
            if layers != named {
                let reason = format!("it names {named} layers, the manifest {layers}");
                return Err(PullError::Document { what: "config", digest: at, reason });
            }
            return Ok(PullPlan { digest, config: bytes, parsed: config, layers: parsed.layers });
        }
        Err(PullError::Document {
            what: "index",
            digest: at,
            reason: "indexes are nested too deep".to_owned(),
        })
    }

    /// Fetches a manifest or configuration by digest.
    async fn document(
        &self,
        what: &'static str,
        sources: &[Source],
        wanted: &Descriptor,
        directory: &TempDirectory,
    ) -> Result<Vec<u8>, PullError> {
        let failed = |source| PullError::Blob { what, digest: wanted.digest.clone(), source };
        if what != "manifest" {
            let path = directory.0.join(what);
            let blob = Blob { digest: wanted.digest.clone(), size: wanted.size, path };
            return blob.read(sources, LARGEST_CONFIG).await.map_err(failed);
        }
        let mut outcome = Err(failed(RegistryError::NotFound));
        for source in sources {
            match source.manifest(&wanted.digest, LARGEST_MANIFEST).await {
                Ok(bytes) if digest_of(&bytes) == wanted.digest => return Ok(bytes),
                Ok(bytes) => {
                    let (found, wanted) = (digest_of(&bytes), wanted.digest.clone());
                    outcome = Err(failed(RegistryError::Digest { found, wanted }));
                }
                Err(error) => outcome = Err(failed(error)),
            }
        }
        outcome
    }

    async fn fetch(
        &self,
        plan: PullPlan,
        reference: &Reference,
        tag: Option<String>,
        sources: Vec<Source>,
        directory: TempDirectory,
    ) -> Result<String, PullError> {
        let chains = ImageStore::chains(&plan.parsed);
        // From here on the layers are protected from garbage collection.
        let _held = self.store.hold(&chains);
        let missing: Vec<usize> =
            (0..chains.len()).filter(|at| !self.store.has_layer(&chains[*at])).collect();
        let needed = missing.iter().fold(0_u64, |sum, at| sum.saturating_add(plan.layers[*at].size));
        let free = free_space(&directory.0)?;
        if needed > free {
            return Err(PullError::NoSpace { needed, free });
        }
        self.progress.total.store(needed, Ordering::Relaxed);
        self.progress.layers.store(missing.len() as u64, Ordering::Relaxed);
        tracing::info!(image = %reference, layers = missing.len(), bytes = needed, "pulling image");
        let (mut queued, mut wait) = (Vec::new(), BTreeMap::new());
        for at in missing {
            let (sender, receiver) = oneshot::channel::<PathBuf>();
            let layer = &plan.layers[at];
            let blob = Blob {
                digest: layer.digest.clone(),
                size: layer.size,
                path: directory.0.join(format!("{at}")),
            };
            queued.push((blob, sender));
            wait.insert(at, receiver);
        }
        let store = Arc::clone(&self.store);
        let digest = reference.with_digest(&plan.digest);
        let mut before: Option<PathBuf> = None;
        let mut adding = tokio::task::spawn_blocking(move || {
            store.add(&plan.config, tag, [digest], |at| {
                // The previous layer has been unpacked.
                if let Some(path) = before.take() {
                    let _ = std::fs::remove_file(path);
                }
                let receiver = wait.remove(&at).ok_or(PullError::Interrupted)?;
                let path = receiver.blocking_recv().map_err(|_| PullError::Interrupted)?;
                before = Some(path.clone());
                Ok::<_, PullError>(Archive { path, range: None })
            })
        });
        let added = {
            let downloading = self.download(queued, &sources);
            tokio::pin!(downloading);
            tokio::select! {
                outcome = &mut downloading => match outcome {
                    Ok(()) => (&mut adding).await,
                    Err(error) => {
                        // Dropping the senders of the remaining layers ends the unpacking too.
                        downloading.set(self.download(Vec::new(), &sources));
                        let _ = (&mut adding).await;
                        return Err(error);
                    }
                },
                outcome = &mut adding => outcome,
            }
        };
        drop(directory);
        let image = added.map_err(|error| std::io::Error::other(error.to_string()))??;
        Ok(image.id)
    }

    async fn download(
        &self,
        blobs: Vec<(Blob, oneshot::Sender<PathBuf>)>,
        sources: &[Source],
    ) -> Result<(), PullError> {
        let mut waiting = blobs.into_iter();
        let mut downloading = FuturesUnordered::new();
        loop {
            while downloading.len() < MAX_CONCURRENT_DOWNLOADS
                && let Some((blob, sender)) = waiting.next()
            {
                downloading.push(async move {
                    let fetched = blob.fetch(sources, &self.progress).await;
                    fetched.map_err(|source| PullError::Blob {
                        what: "layer",
                        digest: blob.digest.clone(),
                        source,
                    })?;
                    self.progress.layers_done.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(digest = blob.digest, bytes = blob.size, "layer downloaded");
                    // A closed receiver means that unpacking failed; that error is reported instead.
                    let _ = sender.send(blob.path);
                    Ok::<(), PullError>(())
                });
            }
            match downloading.next().await {
                Some(outcome) => outcome?,
                None => return Ok(()),
            }
        }
    }
}

fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Checks that the digest is well-formed, since it becomes part of URLs.
fn checked(descriptor: &Descriptor) -> Result<&Descriptor, PullError> {
    if is_digest(&descriptor.digest) {
        return Ok(descriptor);
    }
    let reason = "only sha256 is supported".to_owned();
    Err(PullError::Document { what: "digest", digest: descriptor.digest.clone(), reason })
}

fn parse<T: for<'de> serde::Deserialize<'de>>(
    what: &'static str,
    digest: &str,
    bytes: &[u8],
) -> Result<T, PullError> {
    serde_json::from_slice(bytes).map_err(|error| PullError::Document {
        what,
        digest: digest.to_owned(),
        reason: error.to_string(),
    })
}

/// Archives, compressed or not; the compression is detected on unpacking.
fn is_layer(media_type: &str) -> bool {
    const KINDS: &[&str] = &[
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ];
    let plain = [".gzip", "+gzip", "+zstd", ".zstd"].iter().find_map(|end| media_type.strip_suffix(end));
    KINDS.contains(&plain.unwrap_or(media_type))
}

fn free_space(path: &std::path::Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_of_layers_are_recognized() {
        for good in [
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "application/vnd.oci.image.layer.v1.tar",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        ] {
            assert!(is_layer(good), "{good}");
        }
        for bad in [
            "",
            "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
        ] {
            assert!(!is_layer(bad), "{bad}");
        }
    }

    #[test]
    fn digest_malformed_is_rejected() {
        let with =
            |digest: &str| checked(&Descriptor { digest: digest.to_owned(), ..Default::default() }).is_ok();
        assert!(with(&format!("sha256:{}", "a".repeat(64))));
        for bad in ["", "sha256:../../x", "sha512:00", "md5:1"] {
            assert!(!with(bad), "{bad}");
        }
    }
}
