//! Imports images from an archive: as `docker save` writes it, or in the OCI layout.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::store::Archive;
use super::{Descriptor, Image, ImageStore, Manifest, Reference, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("failed to read {0}")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} is neither an image archive nor an OCI layout")]
    NoImages(PathBuf),
    #[error("the archive has no {0}")]
    Missing(String),
    #[error("{0} in the archive is not valid")]
    Invalid(String, #[source] serde_json::Error),
    #[error("no image for this machine's architecture")]
    Platform,
    #[error("{0} is compressed; decompress it first")]
    Compressed(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifestEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Byte range of each member of the archive.
struct Members {
    path: PathBuf,
    ranges: BTreeMap<PathBuf, (u64, u64)>,
    links: BTreeMap<PathBuf, PathBuf>,
}

/// Size limit of a document in an archive, as opposed to a layer.
const LARGEST_DOCUMENT: u64 = 16 << 20;

fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => drop(out.pop()),
            _ => {}
        }
    }
    out
}

impl Members {
    fn scan(path: &Path) -> Result<Self, ImportError> {
        let read = |error| ImportError::Read(path.to_owned(), error);
        let mut file = File::open(path).map_err(read)?;
        let mut magic = [0; 2];
        file.read_exact(&mut magic).map_err(read)?;
        if magic == [0x1f, 0x8b] || magic == [0x28, 0xb5] {
            return Err(ImportError::Compressed(path.to_owned()));
        }
        file.rewind().map_err(read)?;
        let (mut ranges, mut links) = (BTreeMap::new(), BTreeMap::new());
        let mut archive = tar::Archive::new(file);
        for entry in archive.entries_with_seek().map_err(read)? {
            let entry = entry.map_err(read)?;
            let name = clean(&entry.path().map_err(read)?);
            if entry.header().entry_type().is_file() {
                ranges.insert(name, (entry.raw_file_position(), entry.size()));
            } else if let Some(to) = entry.link_name().map_err(read)? {
                let hard = entry.header().entry_type().is_hard_link();
                let base = if hard { Path::new("") } else { name.parent().unwrap_or(Path::new("")) };
                links.insert(name.clone(), clean(&base.join(to)));
            }
        }
        Ok(Self { path: path.to_owned(), ranges, links })
    }

    fn byte_range(&self, name: &str) -> Result<(u64, u64), ImportError> {
        let name = clean(Path::new(name));
        let name = self.links.get(&name).unwrap_or(&name);
        self.ranges.get(name).copied().ok_or_else(|| ImportError::Missing(name.display().to_string()))
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImportError> {
        let (offset, size) = self.byte_range(name)?;
        let read = |error| ImportError::Read(self.path.clone(), error);
        if size > LARGEST_DOCUMENT {
            return Err(read(io::Error::other(format!("{name} is too large"))));
        }
        let mut file = File::open(&self.path).map_err(read)?;
        file.seek(io::SeekFrom::Start(offset)).map_err(read)?;
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes).map_err(read)?;
        Ok(bytes)
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<T, ImportError> {
        serde_json::from_slice(&self.document(name)?)
            .map_err(|error| ImportError::Invalid(name.to_owned(), error))
    }
}

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

impl ImageStore {
    /// Imports all images of an archive.
    pub fn import(&self, path: &Path) -> Result<Vec<Image>, ImportError> {
        let members = Members::scan(path)?;
        if members.byte_range("manifest.json").is_ok() {
            let saved: Vec<DockerManifestEntry> = members.json("manifest.json")?;
            return saved.iter().map(|saved| self.import_saved(&members, saved)).collect();
        }
        if members.byte_range("index.json").is_ok() {
            let index: Manifest = members.json("index.json")?;
            return index.manifests.iter().map(|entry| self.import_entry(&members, entry)).collect();
        }
        Err(ImportError::NoImages(path.to_owned()))
    }

    fn import_saved(&self, members: &Members, saved: &DockerManifestEntry) -> Result<Image, ImportError> {
        let config = members.document(&saved.config)?;
        let tags = saved.repo_tags.iter().flatten().filter_map(|tag| Reference::parse(tag).ok());
        self.add(&config, tags.map(|tag| tag.to_string()), [], |at| {
            let name = saved.layers.get(at).ok_or_else(|| ImportError::Missing(format!("layer {at}")))?;
            Ok(Archive { path: members.path.clone(), range: Some(members.byte_range(name)?) })
        })
    }

    fn import_entry(&self, members: &Members, entry: &Descriptor) -> Result<Image, ImportError> {
        let mut manifest: Manifest = members.json(&blob(&entry.digest))?;
        if manifest.config.is_none() {
            let chosen = manifest.for_this_machine().ok_or(ImportError::Platform)?;
            manifest = members.json(&blob(&chosen.digest))?;
        }
        let config =
            manifest.config.as_ref().ok_or_else(|| ImportError::Missing("configuration".to_owned()))?;
        let config = members.document(&blob(&config.digest))?;
        let name = ["io.containerd.image.name", "org.opencontainers.image.ref.name"]
            .iter()
            .find_map(|key| entry.annotations.get(*key));
        let reference = name.and_then(|name| Reference::parse(name).ok());
        let digest = reference.as_ref().map(|reference| reference.with_digest(&entry.digest));
        self.add(&config, reference.map(|reference| reference.to_string()), digest, |at| {
            let layer = manifest.layers.get(at).ok_or_else(|| ImportError::Missing(format!("layer {at}")))?;
            Ok(Archive { path: members.path.clone(), range: Some(members.byte_range(&blob(&layer.digest))?) })
        })
    }
}
