//! Images on disk: `images.json` is the index, `layers/` holds the unpacked layers, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{ImageConfig, Reference};
use crate::launch::{LaunchError, Launcher};
use crate::shim::spec::Root;
use crate::shim::unpack::UnpackSpec;
use crate::shim::{Report, Task};

/// A layer on top of specific lower layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its directory in `layers/`.
    pub name: String,
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The digest of its configuration.
    pub id: String,
    pub tags: BTreeSet<String>,
    pub digests: BTreeSet<String>,
    /// Lowest first.
    pub layers: Vec<Layer>,
    pub config: ImageConfig,
    #[serde(default)]
    pub pinned: bool,
}

impl Image {
    #[must_use]
    pub fn size(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum()
    }

    /// Layers in the form that a container's root filesystem needs.
    #[must_use]
    pub fn root(&self, store: &ImageStore, read_only: bool) -> Root {
        let layers = self.layers.iter().rev().map(|layer| layer.name.clone()).collect();
        Root { store: store.layers(), layers, read_only }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("image store: {0}")]
    Io(#[from] io::Error),
    #[error("failed to unpack layer: {0}")]
    Unpack(#[from] LaunchError),
    #[error("layer has digest {found}, the image configuration lists {wanted}")]
    WrongLayer { wanted: String, found: String },
    #[error("the image's configuration is not valid: {0}")]
    Config(serde_json::Error),
    #[error("the image has {0} layers, more than the {MOST_LAYERS} that can be mounted together")]
    TooManyLayers(usize),
}

/// Limit of other runtimes, and of what fits into the options of one mount.
const MOST_LAYERS: usize = 127;

/// Location of a layer's archive.
#[derive(Clone, Debug)]
pub struct Archive {
    pub path: PathBuf,
    pub range: Option<(u64, u64)>,
}

/// The store. Its methods block.
#[derive(Debug)]
pub struct ImageStore {
    root: PathBuf,
    launcher: Launcher,
    images: Mutex<BTreeMap<String, Image>>,
    /// Serializes unpacking: concurrency would not make the disk faster, and no layer is unpacked twice.
    unpacking: Mutex<()>,
    /// Reference counts of the layers of images being added; such layers are retained although no image has them yet.
    held: Mutex<BTreeMap<String, usize>>,
}

/// Protects layers from garbage collection while an image that uses them is being added.
#[derive(Debug)]
pub struct LayerGuard<'a> {
    store: &'a ImageStore,
    names: Vec<String>,
}

impl Drop for LayerGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.store.held.lock();
        for name in &self.names {
            match held.get_mut(name) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(held.remove(name)),
            }
        }
    }
}

/// Chain id of a layer: identifies its content and the layers below it.
fn chain(below: &str, diff_id: &str) -> String {
    if below.is_empty() {
        return diff_id.to_owned();
    }
    format!("sha256:{}", hex::encode(Sha256::digest(format!("{below} {diff_id}"))))
}

impl ImageStore {
    /// Opens the store and removes the remains of interrupted unpacking.
    pub fn open(root: &Path, launcher: Launcher) -> io::Result<Self> {
        for part in ["layers", "staging", "downloads"] {
            std::fs::create_dir_all(root.join(part))?;
        }
        for part in ["staging", "downloads"] {
            for left in std::fs::read_dir(root.join(part))? {
                std::fs::remove_dir_all(left?.path())?;
            }
        }
        let images = match std::fs::read(root.join("images.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let store = Self {
            root: root.to_owned(),
            launcher,
            images: Mutex::new(images),
            unpacking: Mutex::new(()),
            held: Mutex::default(),
        };
        store.sweep()?;
        Ok(store)
    }

    /// The directory with all layers.
    #[must_use]
    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Creates an empty download directory; remains after a crash are removed at the next start.
    pub fn downloads(&self) -> io::Result<PathBuf> {
        let path = self.root.join("downloads").join(hex::encode(rand::random::<[u8; 8]>()));
        std::fs::create_dir(&path)?;
        Ok(path)
    }

    #[must_use]
    pub fn list(&self) -> Vec<Image> {
        self.images.lock().values().cloned().collect()
    }

    /// Finds an image by id, id prefix, tag or digest.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Image> {
        let images = self.images.lock();
        if let Some(image) = images.get(name).or_else(|| images.get(&format!("sha256:{name}"))) {
            return Some(image.clone());
        }
        if let Ok(reference) = Reference::parse(name) {
            let whole = reference.to_string();
            let found =
                images.values().find(|image| image.tags.contains(&whole) || image.digests.contains(&whole));
            if let Some(image) = found {
                return Some(image.clone());
            }
        }
        let short = name.strip_prefix("sha256:").unwrap_or(name);
        let mut matching = images.values().filter(|image| {
            short.len() >= 6 && image.id.strip_prefix("sha256:").is_some_and(|id| id.starts_with(short))
        });
        match (matching.next(), matching.next()) {
            (Some(image), None) => Some(image.clone()),
            _ => None,
        }
    }

    fn save(&self, images: &BTreeMap<String, Image>) -> io::Result<()> {
        base::file::replace(&self.root.join("images.json"), &serde_json::to_vec(images)?, base::file::PRIVATE)
    }

    /// Chain ids of the layers of an image with this configuration.
    #[must_use]
    pub fn chains(config: &ImageConfig) -> Vec<String> {
        let mut below = String::new();
        let mut chains = Vec::new();
        for diff_id in &config.rootfs.diff_ids {
            below = chain(&below, diff_id);
            chains.push(below.clone());
        }
        chains
    }

    /// Reports whether the layer with this chain id is unpacked.
    #[must_use]
    pub fn has_layer(&self, chain: &str) -> bool {
        self.layers().join(layer_name(chain)).is_dir()
    }

    /// Protects these layers, present or not, until the returned guard is dropped.
    #[must_use]
    pub fn hold(&self, chains: &[String]) -> LayerGuard<'_> {
        let names: Vec<String> = chains.iter().map(|chain| layer_name(chain)).collect();
        let mut held = self.held.lock();
        for name in &names {
            *held.entry(name.clone()).or_default() += 1;
        }
        LayerGuard { store: self, names }
    }

    /// Adds names to a stored image. Returns false if there is no such image.
    pub fn name(&self, id: &str, tag: Option<String>, digest: String) -> Result<bool, StoreError> {
        let mut images = self.images.lock();
        if !images.contains_key(id) {
            return Ok(false);
        }
        let before = images.clone();
        // A tag refers to one image only.
        for image in images.values_mut().filter(|image| image.id != id) {
            image.tags.retain(|known| Some(known) != tag.as_ref());
        }
        if let Some(image) = images.get_mut(id) {
            image.tags.extend(tag);
            image.digests.insert(digest);
        }
        if *images != before {
            self.save(&images)?;
        }
        Ok(true)
    }

    /// Adds an image. `archive` is called with the position of each missing layer and may block.
    pub fn add<E: From<StoreError>>(
        &self,
        config: &[u8],
        tags: impl IntoIterator<Item = String>,
        digests: impl IntoIterator<Item = String>,
        mut archive: impl FnMut(usize) -> Result<Archive, E>,
    ) -> Result<Image, E> {
        let id = format!("sha256:{}", hex::encode(Sha256::digest(config)));
        let config: ImageConfig = serde_json::from_slice(config).map_err(StoreError::Config)?;
        let chains = Self::chains(&config);
        if chains.len() > MOST_LAYERS {
            return Err(StoreError::TooManyLayers(chains.len()).into());
        }
        let _held = self.hold(&chains);
        let mut layers: Vec<Layer> = Vec::new();
        for (at, chain) in chains.iter().enumerate() {
            let name = layer_name(chain);
            let size_file = self.root.join("layers").join(format!("{name}.size"));
            if !self.has_layer(chain) {
                let archive = archive(at)?;
                let _one = self.unpacking.lock();
                // Another image may have added it meanwhile.
                if !self.has_layer(chain) {
                    let size = self.unpack(&archive, &layers, &config.rootfs.diff_ids[at], &name)?;
                    std::fs::write(&size_file, size.to_string()).map_err(StoreError::from)?;
                }
            }
            let size =
                std::fs::read_to_string(&size_file).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
            layers.push(Layer { name, size });
        }
        let mut images = self.images.lock();
        let tags: BTreeSet<String> = tags.into_iter().collect();
        // A tag refers to one image only.
        for image in images.values_mut() {
            image.tags.retain(|tag| !tags.contains(tag));
        }
        let image = images.entry(id.clone()).or_insert_with(|| Image {
            id,
            tags: BTreeSet::new(),
            digests: BTreeSet::new(),
            layers,
            config,
            pinned: false,
        });
        image.tags.extend(tags);
        image.digests.extend(digests);
        let image = image.clone();
        self.save(&images).map_err(StoreError::from)?;
        Ok(image)
    }

    fn unpack(
        &self,
        archive: &Archive,
        below: &[Layer],
        diff_id: &str,
        name: &str,
    ) -> Result<u64, StoreError> {
        let staging = self.root.join("staging").join(name);
        let _ = std::fs::remove_dir_all(&staging);
        for part in ["upper", "work", "rootfs"] {
            std::fs::create_dir_all(staging.join(part))?;
        }
        let layers = below.iter().rev().map(|layer| layer.name.clone()).collect();
        let spec = UnpackSpec {
            archive: archive.path.clone(),
            range: archive.range,
            below: Root { store: self.layers(), layers, read_only: false },
            into: staging.clone(),
        };
        std::fs::write(staging.join("unpack.json"), serde_json::to_vec(&spec).map_err(io::Error::from)?)?;
        let outcome = self.launcher.run(Task::Unpack, &staging, &staging.join("shim.log"), None);
        let finished = match outcome {
            Ok(Report::Unpacked { digest, size }) if digest == diff_id => {
                std::fs::rename(staging.join("upper"), self.layers().join(name))
                    .map(|()| size)
                    .map_err(Into::into)
            }
            Ok(Report::Unpacked { digest, .. }) => {
                Err(StoreError::WrongLayer { wanted: diff_id.to_owned(), found: digest })
            }
            Ok(_) => Err(LaunchError::NoReport.into()),
            Err(error) => Err(error.into()),
        };
        std::fs::remove_dir_all(&staging)?;
        finished
    }

    /// Removes an image with all its names. Returns false if there was none.
    pub fn remove(&self, id: &str) -> Result<bool, StoreError> {
        {
            let mut images = self.images.lock();
            if images.remove(id).is_none() {
                return Ok(false);
            }
            self.save(&images)?;
        }
        let _one = self.unpacking.lock();
        self.sweep()?;
        Ok(true)
    }

    /// Removes layers without an image. The caller does not remove images in use, so containers retain their layers.
    fn sweep(&self) -> io::Result<()> {
        let used: BTreeSet<String> = {
            let images = self.images.lock();
            let held = self.held.lock();
            let of_images = images.values().flat_map(|image| image.layers.iter().map(|layer| &layer.name));
            of_images.chain(held.keys()).cloned().collect()
        };
        for entry in std::fs::read_dir(self.layers())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if used.contains(name.strip_suffix(".size").unwrap_or(&name)) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                let doomed = self.root.join("staging").join(&name);
                std::fs::rename(entry.path(), &doomed)?;
                std::fs::remove_dir_all(doomed)?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Short, so that many fit into the options of one mount.
fn layer_name(chain: &str) -> String {
    chain.strip_prefix("sha256:").unwrap_or(chain).chars().filter(char::is_ascii_hexdigit).take(24).collect()
}
